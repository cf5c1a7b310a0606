// Trainwatch's rules and dashboards for jsonnet (docs/kubernetes.md). They are the rendered files of this repository.
local files = [
  std.parseYaml(importstr '../rules/trainwatch.yml'),
  std.parseYaml(importstr '../rules/trainwatch-meta.yml'),
  std.parseYaml(importstr '../rules/trainwatch-usage.yml'),
];
local groups = std.flattenArrays([file.groups for file in files]);
// A group's alerts come after its recordings, in order: such a group stays whole, among the alerts.
local alerts(group) = std.length([rule for rule in group.rules if std.objectHas(rule, 'alert')]) > 0;

{
  prometheusAlerts+:: { groups+: [group for group in groups if alerts(group)] },
  prometheusRules+:: { groups+: [group for group in groups if !alerts(group)] },
  grafanaDashboards+:: {
    'trainwatch-cluster.json': import '../grafana/dashboards/trainwatch-cluster.json',
    'trainwatch-exporter.json': import '../grafana/dashboards/trainwatch-exporter.json',
    'trainwatch-histograms.json': import '../grafana/dashboards/trainwatch-histograms.json',
    'trainwatch-run.json': import '../grafana/dashboards/trainwatch-run.json',
    'trainwatch-steps.json': import '../grafana/dashboards/trainwatch-steps.json',
    'trainwatch-system.json': import '../grafana/dashboards/trainwatch-system.json',
  },
}
