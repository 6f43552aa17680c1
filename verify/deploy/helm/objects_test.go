package helm

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// pods are the templates of an installation by the names of their objects.
func pods(t *testing.T, all []runtime.Object) map[string]core.PodTemplateSpec {
	t.Helper()
	found := map[string]core.PodTemplateSpec{}
	for _, d := range pick[*apps.Deployment](all) {
		found[d.Name] = d.Spec.Template
		if !selects(t, d.Spec.Selector, d.Spec.Template) {
			t.Errorf("%s does not select its own pods", d.Name)
		}
	}
	for _, j := range pick[*batch.Job](all) {
		found[j.Name] = j.Spec.Template
	}
	return found
}

func selects(t *testing.T, selector *meta.LabelSelector, pod core.PodTemplateSpec) bool {
	t.Helper()
	s, err := meta.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(labels.Set(pod.Labels))
}

// selected returns the names of the objects whose pods match.
func selected(t *testing.T, selector *meta.LabelSelector, of map[string]core.PodTemplateSpec) []string {
	t.Helper()
	return slices.Sorted(func(yield func(string) bool) {
		for name, pod := range of {
			if selects(t, selector, pod) && !yield(name) {
				return
			}
		}
	})
}

func env(c core.Container) map[string]string {
	found := map[string]string{}
	for _, v := range c.Env {
		found[v.Name] = v.Value
	}
	return found
}

// TestPods: no pod has rights that it does not need, a secret in its environment, or a file that is not mounted.
func TestPods(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`(PASSWORD|SECRET|DATABASE_URL)$`)
	for _, file := range cases(t) {
		all := objects(t, values(t, file))
		if n := len(pick[*core.Secret](all)); n > 0 {
			t.Errorf("%s: %d Secrets are part of the release", file, n)
		}
		for name, pod := range pods(t, all) {
			s, c := pod.Spec.SecurityContext, pod.Spec.Containers[0]
			if !*s.RunAsNonRoot || *s.RunAsUser != 65532 || *pod.Spec.AutomountServiceAccountToken ||
				s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: %s: pod's rights: %v", file, name, s)
			}
			if *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
				!slices.Equal(c.SecurityContext.Capabilities.Drop, []core.Capability{"ALL"}) {
				t.Errorf("%s: %s: container's rights: %v", file, name, c.SecurityContext)
			}
			mounted := map[string]bool{}
			for _, source := range pod.Spec.Volumes[0].Projected.Sources {
				for _, item := range source.Secret.Items {
					mounted[c.VolumeMounts[0].MountPath+"/"+item.Path] = true
				}
			}
			if len(c.EnvFrom) > 0 {
				t.Errorf("%s: %s takes an environment from elsewhere", file, name)
			}
			for _, v := range c.Env {
				if secret.MatchString(v.Name) || v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
					t.Errorf("%s: %s: %s is a secret in the environment", file, name, v.Name)
				}
				if strings.HasPrefix(v.Value, "/run/secrets/") {
					if !mounted[v.Value] {
						t.Errorf("%s: %s: %s is not mounted", file, name, v.Value)
					}
					delete(mounted, v.Value)
				}
			}
			if len(mounted) > 0 {
				t.Errorf("%s: %s: nothing reads %v", file, name, mounted)
			}
		}
	}
}

// TestSelectors: what selects pods selects those that it is for.
func TestSelectors(t *testing.T) {
	t.Parallel()
	all := objects(t, values(t, "testdata/full.yaml"))
	of := pods(t, all)
	if names := slices.Sorted(maps.Keys(of)); !slices.Equal(names, []string{
		"effectonce-email", "effectonce-ledger", "effectonce-migrate", "effectonce-relay", "effectonce-ui",
	}) {
		t.Fatalf("objects with pods: %v", names)
	}
	for _, d := range pick[*apps.Deployment](all) {
		if s := selected(t, d.Spec.Selector, of); !slices.Equal(s, []string{d.Name}) {
			t.Errorf("Deployment %s selects %v", d.Name, s)
		}
		for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
			if s := selected(t, spread.LabelSelector, of); !slices.Equal(s, []string{d.Name}) {
				t.Errorf("Deployment %s spreads %v", d.Name, s)
			}
		}
	}
	for _, s := range pick[*core.Service](all) {
		got := selected(t, meta.SetAsLabelSelector(s.Spec.Selector), of)
		if !slices.Equal(got, []string{"effectonce-ui"}) {
			t.Errorf("Service %s selects %v", s.Name, got)
		}
	}
	var covered []string
	for _, p := range pick[*networking.NetworkPolicy](all) {
		covered = append(covered, selected(t, &p.Spec.PodSelector, of)...)
	}
	slices.Sort(covered)
	if names := slices.Sorted(maps.Keys(of)); !slices.Equal(covered, names) {
		t.Errorf("network policies select %v, want each once: %v", covered, names)
	}
	for _, m := range pick[*monitoring.PodMonitor](all) {
		if s := selected(t, &m.Spec.Selector, of); !slices.Equal(s,
			[]string{"effectonce-email", "effectonce-ledger", "effectonce-relay"}) {
			t.Errorf("PodMonitor selects %v", s)
		}
	}
}

// TestPorts: probes, Service, NetworkPolicy and PodMonitor name ports that the pods have.
func TestPorts(t *testing.T) {
	t.Parallel()
	all := objects(t, values(t, "testdata/full.yaml"))
	of := pods(t, all)
	port := func(name string, c core.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p core.ContainerPort) bool { return p.Name == name })
	}
	for name, pod := range of {
		c := pod.Spec.Containers[0]
		for _, p := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe} {
			switch {
			case name == "effectonce-migrate":
				if p != nil {
					t.Errorf("a Job has probes")
				}
			case p.HTTPGet != nil && !port(p.HTTPGet.Port.StrVal, c),
				p.TCPSocket != nil && !port(p.TCPSocket.Port.StrVal, c):
				t.Errorf("%s: a probe asks a port that it does not have", name)
			}
		}
	}
	relay := of["effectonce-relay"].Spec.Containers[0]
	if relay.LivenessProbe.HTTPGet.Path != "/healthz" || relay.ReadinessProbe.HTTPGet.Path != "/readyz" ||
		env(relay)["RELAY_LISTEN"] != ":9187" || relay.Ports[0].ContainerPort != 9187 {
		t.Errorf("relay: probes or port: %v %v", relay.LivenessProbe, relay.Ports)
	}
	for _, p := range pick[*networking.NetworkPolicy](all) {
		for _, name := range selected(t, &p.Spec.PodSelector, of) {
			for _, rule := range p.Spec.Ingress {
				if !port(rule.Ports[0].Port.StrVal, of[name].Spec.Containers[0]) || len(rule.From) == 0 {
					t.Errorf("%s: %v", p.Name, rule)
				}
			}
		}
	}
}

// TestClosed: without peers nobody is let in; a rule without "from" would let everybody in.
func TestClosed(t *testing.T) {
	t.Parallel()
	policies := pick[*networking.NetworkPolicy](objects(t, values(t, "testdata/proxy.yaml")))
	if len(policies) != 3 {
		t.Fatalf("%d network policies", len(policies))
	}
	for _, p := range policies {
		if len(p.Spec.Ingress) > 0 || len(p.Spec.PolicyTypes) != 2 {
			t.Errorf("%s lets in %v", p.Name, p.Spec.Ingress)
		}
	}
}

// TestMigration: the Job runs before an installation and an upgrade, with its own Secret, and needs no object of the
// release, for none of them is there yet.
func TestMigration(t *testing.T) {
	t.Parallel()
	all := objects(t, values(t, "testdata/full.yaml"))
	jobs := pick[*batch.Job](all)
	if len(jobs) != 1 || all[0] != runtime.Object(jobs[0]) {
		t.Fatalf("%d Jobs, or not first", len(jobs))
	}
	job := jobs[0]
	if hook := job.Annotations["helm.sh/hook"]; hook != "pre-install,pre-upgrade" {
		t.Errorf("hook: %q", hook)
	}
	pod := job.Spec.Template.Spec
	if !slices.Equal(pod.Containers[0].Args, []string{"migrate"}) || pod.RestartPolicy != core.RestartPolicyNever {
		t.Errorf("runs %v, %s", pod.Containers[0].Args, pod.RestartPolicy)
	}
	for name := range env(pod.Containers[0]) {
		if strings.Contains(name, "KAFKA") {
			t.Errorf("the migration is told %s", name)
		}
	}
	if from := pod.Volumes[0].Projected.Sources; len(from) != 1 || from[0].Secret.Name != "orders-owner" {
		t.Errorf("connects by %v", from)
	}
	gate := pick[*batch.Job](objects(t, values(t, "testdata/proxy.yaml")))[0].Spec
	if args := gate.Template.Spec.Containers[0].Args; !slices.Equal(args, []string{"migrate", "--check"}) {
		t.Errorf("the gate runs %v", args)
	}
	if codes := gate.PodFailurePolicy.Rules[0].OnExitCodes.Values; !slices.Contains(codes, 4) {
		t.Errorf("the gate is tried again: %v", codes)
	}
	if n := len(pick[*batch.Job](objects(t, parse(t, "migrate: {enabled: false}")))); n != 0 {
		t.Errorf("%d Jobs without migrate.enabled", n)
	}
}

// TestRelay: its settings reach it as it reads them, and it is killed later than it has drained.
func TestRelay(t *testing.T) {
	t.Parallel()
	pod := pods(t, objects(t, values(t, "testdata/full.yaml")))["effectonce-relay"].Spec
	got := env(pod.Containers[0])
	for name, want := range map[string]string{
		"RELAY_CLAIM_BYTES": "33554432", "RELAY_LEASE": "30s", "RELAY_RESTORE_CHECK": "false",
		"RELAY_KAFKA_TLS":     "true",
		"RELAY_KAFKA_BROKERS": "kafka-1:9093,kafka-2:9093", "RELAY_DRAIN_TIMEOUT": "45s",
		"RELAY_KAFKA_PASSWORD_FILE": "/run/secrets/effectonce/kafka-password",
	} {
		if got[name] != want {
			t.Errorf("%s=%s, want %s", name, got[name], want)
		}
	}
	if *pod.TerminationGracePeriodSeconds != 60 {
		t.Errorf("killed after %d s", *pod.TerminationGracePeriodSeconds)
	}
	if pod.ServiceAccountName != "relay" || pod.Volumes[1].ConfigMap.Name != "kafka-ca" {
		t.Errorf("podSpec or volumes are lost: %v", pod)
	}
}

// TestDisruptions: a budget never forbids the eviction of the last pod, and every set of two or more has one.
func TestDisruptions(t *testing.T) {
	t.Parallel()
	for file, want := range map[string][]string{
		"testdata/full.yaml": {"effectonce-ledger", "effectonce-relay"}, "testdata/min.yaml": {"effectonce-relay"},
		"testdata/proxy.yaml": nil,
	} {
		all := objects(t, values(t, file))
		of := pods(t, all)
		var names []string
		for _, b := range pick[*policy.PodDisruptionBudget](all) {
			names = append(names, selected(t, b.Spec.Selector, of)...)
			if b.Spec.MinAvailable != nil || b.Spec.MaxUnavailable.IntValue() != 1 {
				t.Errorf("%s: %s: %v", file, b.Name, b.Spec)
			}
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("%s: budgets of %v, want %v", file, names, want)
		}
	}
}

// TestScaling: KEDA alone decides how many workers run, and never more than partitions.
func TestScaling(t *testing.T) {
	t.Parallel()
	texts, err := render(values(t, "testdata/full.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var scaled struct {
		Kind string
		Spec struct {
			ScaleTargetRef                   struct{ Name string }
			MinReplicaCount, MaxReplicaCount int
			Triggers                         []struct {
				Type     string
				Metadata map[string]string
			}
		}
	}
	for _, text := range texts {
		if strings.Contains(text, "kind: ScaledObject") {
			if err := yaml.Unmarshal([]byte(text), &scaled); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := scaled.Spec
	if s.ScaleTargetRef.Name != "effectonce-ledger" || s.MinReplicaCount != 2 || s.MaxReplicaCount != 8 ||
		s.Triggers[0].Metadata["threshold"] != "1000000" || s.Triggers[0].Metadata["query"] !=
		`sum(effectonce_consumer_lag{namespace="events",pod=~"effectonce-ledger-.*"})` {
		t.Errorf("%+v", scaled)
	}
	for _, d := range pick[*apps.Deployment](objects(t, values(t, "testdata/full.yaml"))) {
		if d.Name == "effectonce-ledger" && d.Spec.Replicas != nil {
			t.Errorf("%s: an upgrade would set its replicas to %d", d.Name, *d.Spec.Replicas)
		}
	}
}
