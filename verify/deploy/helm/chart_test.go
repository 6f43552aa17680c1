// Package helm tests the chart: linted and rendered by Helm's own packages, decoded strictly into Kubernetes' types,
// and validated against its schemas.
package helm

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the plain manifests, and the chart's copies of the rules")

const (
	dir      = "../../../deploy/helm/effectonce"
	manifest = "../../../deploy/kustomize/base/effectonce.yaml"
)

// cases are the values that the chart is rendered with.
func cases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v %v", files, err)
	}
	return files
}

func values(t *testing.T, file string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValuesFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// parse returns values that are written in YAML, over those of a minimal installation.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return chartutil.CoalesceTables(v, values(t, "testdata/min.yaml"))
}

// render returns what `helm template` prints, with the hooks first.
func render(v map[string]any) ([]string, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "effectonce", Namespace: "events", Revision: 1, IsInstall: true}
	top, err := chartutil.ToRenderValues(chart, v, release, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, top)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasSuffix(name, ".txt") })
	hooks, others, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, h := range hooks {
		texts = append(texts, h.Manifest)
	}
	for _, m := range others {
		texts = append(texts, m.Content)
	}
	return texts, nil
}

// objects renders and decodes; unknown fields, and fields of another type, are errors.
func objects(t *testing.T, v map[string]any) []runtime.Object {
	t.Helper()
	texts, err := render(v)
	if err != nil {
		t.Fatal(err)
	}
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoring.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	schemas := newSchemas(t)
	var all []runtime.Object
	for _, text := range texts {
		if strings.Contains(text, "\napiVersion: keda.sh/") || strings.HasPrefix(text, "apiVersion: keda.sh/") {
			continue // KEDA's types are in a module with KEDA itself
		}
		o, kind, err := decoder.Decode([]byte(text), nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !strings.HasPrefix(kind.Group, "monitoring.") {
			schemas.validate(t, kind.Group, kind.Version, kind.Kind, text)
		}
		all = append(all, o)
	}
	return all
}

// pick returns the objects of a type.
func pick[T runtime.Object](all []runtime.Object) []T {
	var some []T
	for _, o := range all {
		if one, ok := o.(T); ok {
			some = append(some, one)
		}
	}
	return some
}

// schemas are Kubernetes' own, which kubectl-validate carries: what is required, and of which form.
type schemas struct {
	dir      string
	compiler *jsonschema.Compiler
}

func newSchemas(t *testing.T) schemas {
	t.Helper()
	// Its files alone are wanted: as a requirement it would bring etcd and an API server.
	out, err := exec.Command("go", "mod", "download", "-json", "sigs.k8s.io/kubectl-validate@v0.0.4").Output()
	if err != nil {
		t.Fatal(err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	return schemas{filepath.Join(module.Dir, "pkg/openapiclient/builtins/1.30"), compiler}
}

func (s schemas) validate(t *testing.T, group, version, kind, text string) {
	t.Helper()
	file, name := filepath.Join(s.dir, "apis", group, version+".json"), strings.TrimSuffix(group, ".k8s.io")
	if group == "" {
		file, name = filepath.Join(s.dir, "api", version+".json"), "core"
	}
	schema, err := s.compiler.Compile(file + "#/components/schemas/io.k8s.api." + name + "." + version + "." + kind)
	if err != nil {
		t.Fatal(err)
	}
	var object any
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(object); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	for _, file := range cases(t) {
		for _, m := range lint.All(dir, values(t, file), "events", true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", file, m)
			}
		}
	}
}

// TestRefused: values that cannot work are refused before anything is installed.
func TestRefused(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		`settings: {leese: 15s}`:                                        "leese",
		`relay: {settings: {leese: 15s}}`:                               "leese",
		`settings: {kafka-password: hunter2}`:                           "kafka-password",
		`settings: {database-url: "postgres://x"}`:                      "database-url",
		`relay: {replica: 3}`:                                           "replica",
		`secrets: {kafka-password: {name: x}}`:                          "key",
		`ui: {enabled: true}`:                                           "Secret of users",
		`podSpec: {hostNetwork: true}`:                                  "hostNetwork",
		`networkPolicy: {postgres: {ports: []}}`:                        "ports",
		`workers: {Ledger: {image: x}}`:                                 "Ledger",
		`workers: {ui: {image: x}}`:                                     "ui",
		`workers: {a: {}}`:                                              "image",
		`workers: {a: {image: x, env: {A_DATABASE_URL: postgres://x}}}`: "A_DATABASE_URL",
		`workers: {a: {image: x, scaling: {min: 9, partitions: 8, lag: 1, prometheus: "http://p"}}}`: "min is above",
	} {
		if _, err := render(parse(t, text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error about %s", text, err, says)
		}
	}
}

// TestValuesOfThePage: the chart takes the values of docs/operations/kubernetes.md.
func TestValuesOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/operations/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml title=\"values.yaml\"\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if len(objects(t, parse(t, block))) == 0 {
			t.Errorf("this makes no objects:\n%s", block)
		}
	}
	if len(blocks) == 0 {
		t.Error("the page has no values")
	}
}

// TestManifests: the plain manifests are the chart's, and kustomize builds them and the overlay.
func TestManifests(t *testing.T) {
	t.Parallel()
	texts, err := render(values(t, "testdata/kustomize.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := "# go test ./deploy/helm -update, in that module, writes this file from the chart.\n---\n" +
		strings.Join(texts, "\n---\n") + "\n"
	if *update {
		if err := os.WriteFile(manifest, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the chart renders: go test -run TestManifests -update", manifest)
	}
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("there is no kubectl here: the manifests were compared, and kustomize was not run")
	}
	out, err := exec.Command(kubectl, "kustomize", "../../../deploy/kustomize/overlay").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for text, times := range map[string]int{
		"\n  namespace: events\n": len(texts), "image: ghcr.io/effectonce/relay:v0.1.0": 3,
		"value: kafka-1:9093,kafka-2:9093": 2, "value: kafka:9092": 0, "replicas: 3": 1,
	} {
		if n := strings.Count(string(out), text); n != times {
			t.Errorf("the overlay has %q %d times, want %d\n%s", text, n, times, out)
		}
	}
}

// TestRules: Prometheus' rules are those of deploy/prometheus, with their own templates untouched. The chart has copies
// of these files: a chart cannot read what is outside of it.
func TestRules(t *testing.T) {
	if *update {
		for _, file := range []string{"alerts.yml", "idempotency.yml"} {
			text, err := os.ReadFile("../../../deploy/prometheus/" + file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "rules", file), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	rules := pick[*monitoring.PrometheusRule](objects(t, values(t, "testdata/full.yaml")))
	if len(rules) != 1 {
		t.Fatalf("%d objects with rules", len(rules))
	}
	var want []monitoring.RuleGroup
	for _, file := range []string{"alerts", "idempotency"} {
		text, err := os.ReadFile("../../../deploy/prometheus/" + file + ".yml")
		if err != nil {
			t.Fatal(err)
		}
		var one struct{ Groups []monitoring.RuleGroup }
		if err := yaml.UnmarshalStrict(text, &one); err != nil {
			t.Fatal(err)
		}
		want = append(want, one.Groups...)
	}
	got, err := yaml.Marshal(rules[0].Spec.Groups)
	if err != nil {
		t.Fatal(err)
	}
	expected, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, expected) || len(want) < 2 {
		t.Errorf("the chart has other rules: go test -run TestRules -update\n%s", got)
	}
}
