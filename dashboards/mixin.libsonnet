// The alerts and dashboards as a mixin: https://monitoring.mixins.dev. The objective's alerts need the recording rules in
// their group, so `prometheusAlerts` has these, too, and there is no `prometheusRules`.
{
  prometheusAlerts+:: { groups+: std.parseYaml(importstr 'alerts.rules.yml').groups },
  // By their uid: `overview.json` could be that of another mixin.
  grafanaDashboards+:: {
    [dashboard.uid + '.json']: dashboard
    for dashboard in [import 'overview.json', import 'deep-dive.json', import 'consumers.json']
  },
}
