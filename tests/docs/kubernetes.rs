//! The manifests in `deploy/kubernetes`, which `deploy/helm/check` renders from the chart, are what the Kubernetes API
//! takes, and their configuration is what a relay takes.

#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

use std::fs;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{ConfigMap, Container, PodSpec},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
    },
    serde::{Serialize, de::DeserializeOwned},
};
use mysql_outbox::config::{Config, Inputs, load, load_for_database};
use serde_json::Value;

const MANIFESTS: &str = include_str!("../../deploy/kubernetes/relay.yaml");
const MIGRATION: &str = include_str!("../../deploy/kubernetes/migrate.yaml");
const CHART: &str = include_str!("../../deploy/helm/outbox-relay/Chart.yaml");
const VALUES: &str = include_str!("../../deploy/helm/outbox-relay/values.yaml");
/// The folder of the secrets in a pod.
const SECRETS: &str = "/run/secrets/outbox";

/// Returns the manifest of this kind. The types take unknown fields, and lose them: so it is compared with what they
/// write.
fn manifest<T: DeserializeOwned + Serialize>(kind: &str) -> T {
    manifest_of(MANIFESTS, kind)
}

fn manifest_of<T: DeserializeOwned + Serialize>(manifests: &str, kind: &str) -> T {
    let mut found = manifests.split("\n---\n").map(|text| serde_yaml_ng::from_str::<Value>(text).unwrap());
    let value = found.find(|value| value["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
    let typed: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{kind}: {error}"));
    assert_eq!(serde_json::to_value(&typed).unwrap(), value, "{kind} has a field that its type does not know");
    typed
}

fn pod() -> (PodSpec, Container) {
    let pod = manifest::<Deployment>("Deployment").spec.unwrap().template.spec.unwrap();
    let container = pod.containers[0].clone();
    (pod, container)
}

/// Returns the configuration in the `ConfigMap`, read with a file for each secret that it names.
fn config() -> Config {
    let folder = tempfile::tempdir().unwrap();
    let text = manifest::<ConfigMap>("ConfigMap").data.unwrap().remove("relay.toml").unwrap();
    for rest in text.split(SECRETS).skip(1) {
        let name = rest.split('"').next().and_then(|name| name.strip_prefix('/')).unwrap();
        fs::write(folder.path().join(name), "a secret").unwrap();
    }
    let file = folder.path().join("relay.toml");
    fs::write(&file, text.replace(SECRETS, &folder.path().to_string_lossy())).unwrap();
    let mut inputs = Inputs::default();
    inputs.file = Some(file);
    load(&inputs).unwrap_or_else(|error| panic!("{error}")).config
}

#[test]
fn every_manifest_is_one_of_the_kubernetes_api() {
    assert_eq!(MANIFESTS.matches("\nkind: ").count(), 4);
    pod();
    config();
    let labels = manifest::<Deployment>("Deployment").spec.unwrap().selector.match_labels;
    assert!(labels.is_some());
    let budget = manifest::<PodDisruptionBudget>("PodDisruptionBudget").spec.unwrap();
    assert_eq!(budget.selector.unwrap().match_labels, labels);
    let policy = manifest::<NetworkPolicy>("NetworkPolicy").spec.unwrap();
    assert_eq!(policy.pod_selector.unwrap().match_labels, labels);
}

/// Without Helm this finds a chart that was not rendered again, if its values or its version have changed.
#[test]
fn the_manifests_are_of_the_chart_and_of_this_version() {
    let [chart, values] = [CHART, VALUES].map(|text| serde_yaml_ng::from_str::<Value>(text).unwrap());
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!([&chart["version"], &chart["appVersion"]], [version, version]);
    assert_eq!(chart["home"], env!("CARGO_PKG_REPOSITORY"));
    let (_, container) = pod();
    let repository = values["image"]["repository"].as_str().unwrap();
    assert_eq!(container.image, Some(format!("{repository}:{version}")));
    let resources = serde_json::to_value(container.resources).unwrap();
    assert_eq!(resources, values["resources"]);
    let text = manifest::<ConfigMap>("ConfigMap").data.unwrap().remove("relay.toml").unwrap();
    assert_eq!(text.trim_end(), values["config"].as_str().unwrap().trim_end());
}

#[test]
fn probes_reach_the_address_that_the_relay_listens_on() {
    let (_, container) = pod();
    let address = config().http.listen.unwrap();
    assert!(address.ip().is_unspecified(), "a probe does not come from loopback");
    let port = &container.ports.unwrap()[0];
    assert_eq!(port.container_port, i32::from(address.port()));
    for (probe, path) in [(container.liveness_probe, "/livez"), (container.readiness_probe, "/readyz")] {
        let get = probe.unwrap().http_get.unwrap();
        assert_eq!(get.path.as_deref(), Some(path));
        assert_eq!(serde_json::to_value(get.port).unwrap(), port.name.clone().unwrap());
    }
}

/// As `run::supervise` stops: the pipeline, two waits of five seconds, and a connect and a call for what is left.
#[test]
fn a_pod_has_the_time_that_a_stop_may_take() {
    let relay = config().relay;
    let longest = relay.stop_deadline.as_secs() + 10 + 2 * relay.settle_deadline.as_secs();
    let grace = pod().0.termination_grace_period_seconds.unwrap();
    assert!(grace > i64::try_from(longest).unwrap(), "{grace} s, and a stop may take {longest} s");
}

#[test]
fn the_relay_can_read_its_files_and_write_none() {
    let (pod, container) = pod();
    let user = pod.security_context.unwrap();
    assert_eq!((user.run_as_non_root, user.run_as_user, user.fs_group), (Some(true), Some(65532), Some(65532)));
    let rights = container.security_context.unwrap();
    assert_eq!(rights.read_only_root_filesystem, Some(true));
    let mounts = container.volume_mounts.unwrap();
    assert!(mounts.iter().all(|mount| mount.read_only == Some(true) && mount.sub_path.is_none()));
    assert!(mounts.iter().any(|mount| mount.mount_path == SECRETS));
    let volumes = pod.volumes.unwrap();
    let secret = volumes.iter().find_map(|volume| volume.secret.as_ref()).unwrap();
    assert_eq!(secret.default_mode, Some(0o440), "for the group, and for no other user");
    let [config] = &container.env.unwrap()[..] else { panic!("more than one variable") };
    let folder = config.value.as_ref().and_then(|path| path.strip_suffix("/relay.toml"));
    assert!(mounts.iter().any(|mount| Some(mount.mount_path.as_str()) == folder));
}

/// The account of the relays cannot make tables, and theirs is not in a pod of a relay.
#[test]
fn the_migration_is_a_job_with_an_account_of_its_own() {
    assert_eq!(MIGRATION.matches("\nkind: ").count(), 1);
    let pod = manifest_of::<Job>(MIGRATION, "Job").spec.unwrap().template.spec.unwrap();
    let (relays, relay) = self::pod();
    let job = pod.containers[0].clone();
    assert_eq!((job.image, job.security_context), (relay.image, relay.security_context));
    assert_eq!(pod.security_context, relays.security_context);
    assert_eq!(job.args.unwrap(), ["migrate", "up"]);
    let volume = pod.volumes.unwrap()[0].secret.clone().unwrap();
    assert_eq!((volume.secret_name.as_deref(), volume.default_mode), (Some("outbox-migrate"), Some(0o440)));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("database_password"), "a secret").unwrap();
    let folder = folder.path().to_string_lossy().into_owned();
    let mut inputs = Inputs::default();
    inputs.variables =
        job.env.unwrap().into_iter().map(|it| (it.name, it.value.unwrap().replace(SECRETS, &folder))).collect();
    let config = load_for_database(&inputs).unwrap_or_else(|error| panic!("{error}")).config;
    let database = format!("{:?}", config.database);
    assert!(database.contains("password: Some") && MIGRATION.contains("//outbox_migrator@"), "{database}");
}
