// Stepscope's rules and dashboards for jsonnet (docs/kubernetes.md). They are the rendered files of this repository.
local files = [
  std.parseYaml(importstr '../rules/stepscope.yml'),
  std.parseYaml(importstr '../rules/stepscope-meta.yml'),
  std.parseYaml(importstr '../rules/stepscope-usage.yml'),
];
local groups = std.flattenArrays([file.groups for file in files]);
// A group's alerts come after its recordings, in order: such a group stays whole, among the alerts.
local alerts(group) = std.length([rule for rule in group.rules if std.objectHas(rule, 'alert')]) > 0;

{
  prometheusAlerts+:: { groups+: [group for group in groups if alerts(group)] },
  prometheusRules+:: { groups+: [group for group in groups if !alerts(group)] },
  grafanaDashboards+:: {
    'stepscope-cluster.json': import '../grafana/dashboards/stepscope-cluster.json',
    'stepscope-exporter.json': import '../grafana/dashboards/stepscope-exporter.json',
    'stepscope-histograms.json': import '../grafana/dashboards/stepscope-histograms.json',
    'stepscope-run.json': import '../grafana/dashboards/stepscope-run.json',
    'stepscope-steps.json': import '../grafana/dashboards/stepscope-steps.json',
    'stepscope-system.json': import '../grafana/dashboards/stepscope-system.json',
  },
}
