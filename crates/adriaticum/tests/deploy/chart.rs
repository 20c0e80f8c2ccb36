//! The Helm chart: it passes lint, and renders the required settings.

use std::process::Command;

use serde_json::Value;

use crate::folder::deploy;

/// The objects that the chart renders with these values.
fn render(values: &[&str]) -> Vec<Value> {
    let mut helm = Command::new("helm");
    helm.args(["template", "test"]).arg(deploy().join("helm/adriaticum"));
    helm.args(values.iter().flat_map(|value| ["--set", value]));
    let output = helm.output().expect("helm");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_saphyr::from_str_multiple(&text).unwrap()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[test]
#[ignore = "needs helm; `tools/test` runs it where helm is installed"]
fn the_chart_passes_helm_lint() {
    let mut lint = Command::new("helm");
    let lint = lint.args(["lint", "--strict"]).arg(deploy().join("helm/adriaticum")).output().expect("helm");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

#[test]
#[ignore = "needs helm; `tools/test` runs it where helm is installed"]
fn pods_run_unprivileged_and_have_time_to_stop() {
    let objects = render(&[]);
    let replicas = of_kind(&objects, "Deployment")[0];
    assert_eq!(replicas["spec"]["replicas"], 3);
    let runtimes = of_kind(&objects, "StatefulSet")[0];
    assert_eq!(runtimes["spec"]["replicas"], 2);
    for pods in [replicas, runtimes] {
        let pod = &pods["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let containers = ["containers", "initContainers"].iter().filter_map(|kind| pod[kind].as_array());
        for container in containers.flatten() {
            let rights = &container["securityContext"];
            assert_eq!(rights["readOnlyRootFilesystem"], true, "{container}");
            assert_eq!(rights["allowPrivilegeEscalation"], false, "{container}");
            assert_eq!(rights["capabilities"]["drop"], serde_json::json!(["ALL"]), "{container}");
        }
    }
    let pod = &replicas["spec"]["template"]["spec"];
    let environment = pod["containers"][0]["env"].as_array().unwrap();
    let seconds = |name: &str| {
        let value = environment.iter().find(|each| each["name"] == name).unwrap()["value"].as_str().unwrap();
        value.strip_suffix('s').unwrap().parse::<u64>().unwrap()
    };
    let needed = seconds("ADRIATICUM_API_DRAIN") + seconds("ADRIATICUM_API_STOP_TIMEOUT");
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > needed, "{pod}");
    // The members of the pool are the addresses of the headless service's name.
    let runtime_urls = environment.iter().find(|each| each["name"] == "ADRIATICUM_RUNTIME_URLS").unwrap();
    let headless = of_kind(&objects, "Service").into_iter().find(|service| service["spec"]["clusterIP"] == "None");
    let name = headless.unwrap()["metadata"]["name"].as_str().unwrap();
    assert_eq!(runtime_urls["value"], format!("http://{name}:8090/v1"));
}

#[test]
#[ignore = "needs helm; `tools/test` runs it where helm is installed"]
fn optional_objects_are_rendered_only_when_enabled() {
    let kinds = ["HorizontalPodAutoscaler", "ServiceMonitor", "NetworkPolicy"];
    let plain = render(&[]);
    let asked = ["autoscaling.enabled=true", "serviceMonitor.enabled=true", "networkPolicy.enabled=true"];
    let full = render(&asked);
    for kind in kinds {
        assert_eq!((of_kind(&plain, kind).len(), of_kind(&full, kind).is_empty()), (0, false), "{kind}");
    }
    assert!(of_kind(&full, "Deployment")[0]["spec"].get("replicas").is_none(), "the autoscaler decides");
    let outside = render(&["runtimes.enabled=false", "runtimeUrls={http://a:1/v1,http://b:2/v1}"]);
    assert!(of_kind(&outside, "StatefulSet").is_empty());
    let text = serde_json::to_string(of_kind(&outside, "Deployment")[0]).unwrap();
    assert!(text.contains("http://a:1/v1,http://b:2/v1"), "{text}");
}
