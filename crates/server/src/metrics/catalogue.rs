//! All metrics: how they are written, and their definitions.

use super::{activity, clients, cluster, commandlog, keys, settings, streams};
use crate::commands::info::{self, Context};
use info::{commands, hot_keys, keyspace, memory, persistence, replication, resources, server, stats};
use kvick_metrics::{Exposition, Metric, export};

static UP: Metric = Metric::gauge("redis_up", "Always 1: the server has answered.");

/// Writes all metrics except those of the scrape itself.
pub fn write(context: &Context, out: &mut Exposition) {
    out.family(&UP).sample(&[], true);
    let replicated = replication::Facts::of(context);
    let facts = server::Facts::of(context);
    server::export_instance(&facts, &replicated, out);
    export(server::PROCESS, &facts, out);
    export(info::clients::FIELDS, info::clients::Facts::of(context), out);
    export(memory::FIELDS, &memory::Facts::of(context), out);
    export(persistence::FIELDS, &persistence::Facts::of(context), out);
    export(stats::FIELDS, &stats::Facts::of(context), out);
    export(stats::DEBUG, &stats::LoopFacts::of(context), out);
    export(replication::UPSTREAM, &replicated, out);
    export(replication::REPLICAS, &replicated, out);
    export(replication::LOG, &replicated, out);
    replication::export_links(&replicated, out);
    let used = resources::Facts::of(context);
    export(resources::FIELDS, &used, out);
    resources::export_workers(&used, out);
    commands::export(context, out);
    keyspace::export(context, out);
    export(replication::CLUSTER, &context.server, out);
    cluster::write(context.server, out);
    settings::write(context.server, out);
    commandlog::write(context.server, out);
    export(activity::FIELDS, &context.server, out);
    activity::write_migrations(context.server, out);
    export(hot_keys::FIELDS, &hot_keys::Facts::of(context), out);
    keys::write(context, out);
    streams::write(context, out);
    clients::write(context, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::collector;
    use kvick_metrics::{Field, Kind};
    use std::collections::BTreeSet;

    const DOCS: &str = include_str!("../../../../docs/metrics.md");

    const DASHBOARD: &str = include_str!("../../../../contrib/grafana/kvick.json");
    const ALERTS: &str = include_str!("../../../../contrib/prometheus/alerts.yml");

    /// A metric, and the field of INFO with the same value.
    type Definition = (Metric, Option<&'static str>);

    fn of_fields<F>(fields: &'static [Field<F>]) -> Vec<Definition> {
        fields.iter().filter_map(|field| Some((field.metric?, field.name))).collect()
    }

    fn all() -> Vec<Definition> {
        let mut all = vec![(UP, None), (server::INSTANCE, None)];
        all.extend(of_fields(server::PROCESS));
        all.extend(of_fields(info::clients::FIELDS));
        all.extend(of_fields(memory::FIELDS));
        all.extend(of_fields(persistence::FIELDS));
        all.extend(of_fields(stats::FIELDS));
        all.extend(of_fields(stats::DEBUG));
        all.extend(of_fields(replication::UPSTREAM));
        all.extend(of_fields(replication::REPLICAS));
        all.extend(of_fields(replication::LOG));
        all.extend(of_fields(replication::CLUSTER));
        all.extend(of_fields(resources::FIELDS));
        all.extend(cluster::METRICS.iter().map(|(name, metric)| (*metric, Some(*name))));
        all.extend(of_fields(activity::FIELDS));
        all.extend(of_fields(hot_keys::FIELDS));
        let others: [&[Metric]; 12] = [
            &replication::METRICS,
            &resources::WORKER_METRICS,
            &commands::METRICS,
            &[commands::ERRORS],
            &keyspace::METRICS,
            &settings::METRICS,
            &commandlog::METRICS,
            &activity::MIGRATIONS,
            &keys::METRICS,
            &streams::METRICS,
            &clients::METRICS,
            &collector::METRICS,
        ];
        all.extend(others.into_iter().flatten().map(|metric| (*metric, None)));
        all
    }

    fn is_name(text: &str) -> bool {
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(is_valid)
    }

    #[test]
    fn definitions_are_valid_and_unique() {
        let mut names = BTreeSet::new();
        for (metric, _) in all() {
            let Metric { name, kind, help, labels } = metric;
            assert!(is_name(name) && labels.iter().all(|label| is_name(label)), "{name}");
            assert!(names.insert(name), "{name} is defined twice");
            assert!(help.ends_with('.') && help.len() > 5, "{name}: {help}");
            let is_ours = name.starts_with("kvick_");
            assert!(is_ours || name.starts_with("redis_"), "{name}");
            // The names of redis_exporter do not keep this convention.
            assert!(!is_ours || (kind == Kind::Counter) == name.ends_with("_total"), "{name}");
        }
    }

    /// The table in the documentation.
    fn table() -> String {
        let mut rows: Vec<String> = all()
            .into_iter()
            .map(|(Metric { name, kind, help, labels }, field)| {
                let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
                let field = field.map_or(String::new(), |field| format!("`{field}`"));
                format!("| `{name}` | {} | {labels} | {field} | {help} |\n", kind.name())
            })
            .collect();
        rows.sort();
        rows.concat()
    }

    #[test]
    fn dashboard_and_alerts_use_existing_metrics() {
        let names: BTreeSet<&str> = all().iter().map(|(metric, _)| metric.name).collect();
        let mut used = 0;
        for text in [DASHBOARD, ALERTS] {
            let words = text.split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_');
            for word in words.filter(|word| word.starts_with("redis_") || word.starts_with("kvick_")) {
                let is_known =
                    names.contains(word) || word.strip_suffix("_bucket").is_some_and(|it| names.contains(it));
                assert!(is_known || word == "redis_exporter", "{word}");
                used += 1;
            }
        }
        assert!(used > 80, "{used}");
    }

    #[test]
    fn the_documentation_lists_all_metrics() {
        let is_row = |line: &&str| ["| `kvick_", "| `redis_"].iter().any(|start| line.starts_with(start));
        let listed: String = DOCS.lines().filter(is_row).map(|line| format!("{line}\n")).collect();
        assert!(listed == table(), "the table in docs/metrics.md should be:\n{}", table());
    }
}
