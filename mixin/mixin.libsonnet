// Stepscope's rules and dashboards for jsonnet (docs/kubernetes.md). They are the rendered files of this repository.
local dashboards = {
  'stepscope-cluster.json': import '../grafana/dashboards/stepscope-cluster.json',
  'stepscope-exporter.json': import '../grafana/dashboards/stepscope-exporter.json',
  'stepscope-histograms.json': import '../grafana/dashboards/stepscope-histograms.json',
  'stepscope-run.json': import '../grafana/dashboards/stepscope-run.json',
  'stepscope-steps.json': import '../grafana/dashboards/stepscope-steps.json',
  'stepscope-system.json': import '../grafana/dashboards/stepscope-system.json',
  'stepscope-usage.json': import '../grafana/dashboards/stepscope-usage.json',
};
local isAlert(rule) = std.objectHas(rule, 'alert');
// A group's alerts come after its recordings, in order: such a group stays whole, among the alerts.
local alerts(group) = std.length([rule for rule in group.rules if isAlert(rule)]) > 0;
local publicDocs = 'https://github.com/stepscope/stepscope/blob/main/docs';

{
  _config+:: {
    // The text of the rule files. Those of `stepscope rules render` may have other thresholds, windows and engines, and
    // links to your Grafana.
    rules: {
      stepscope: importstr '../rules/stepscope.yml',
      'stepscope-meta': importstr '../rules/stepscope-meta.yml',
      'stepscope-usage': importstr '../rules/stepscope-usage.yml',
    },
    alertLabels: {},  // more labels of every alert, for the routes of your Alertmanager
    docsUrl: publicDocs,  // alerts link to it, or to your copy
    // Regular expressions, as `/.../`: which data sources and scrape jobs the dashboards offer. Empty: all.
    datasourceFilterRegex: '',
    jobFilterRegex: '',
  },

  local config = $._config,
  local linked(texts) = std.mapWithKey(
    function(name, text) if std.member(['runbook', 'runbook_url'], name) then
      std.strReplace(text, publicDocs, config.docsUrl) else text, texts
  ),
  local configured(rule) = rule
                           + (if std.objectHas(rule, 'labels') then { labels: linked(rule.labels) } else {})
                           + (if isAlert(rule) then { annotations: linked(rule.annotations), labels+: config.alertLabels } else {}),
  local groups = [
    group { rules: [configured(rule) for rule in group.rules] }
    for name in std.objectFields(config.rules)
    for group in std.parseYaml(config.rules[name]).groups
  ],
  local filters = { datasource: config.datasourceFilterRegex, job: config.jobFilterRegex },
  local offered(variable) = variable + (if std.objectHas(filters, variable.name) then { regex: filters[variable.name] } else {}),

  prometheusAlerts+:: { groups+: [group for group in groups if alerts(group)] },
  prometheusRules+:: { groups+: [group for group in groups if !alerts(group)] },
  grafanaDashboards+:: {
    [name]: dashboards[name] { templating: { list: [offered(variable) for variable in dashboards[name].templating.list] } }
    for name in std.objectFields(dashboards)
  },
}
