package deploy

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"

	"github.com/effectonce/effectonce/ui"
)

const (
	alertsFile    = "../../deploy/prometheus/alerts.yml"
	dashboardFile = "../../deploy/grafana/effectonce.json"
	runbooks      = "../../docs/runbooks/"
	runbookURL    = "https://github.com/effectonce/effectonce/blob/main/docs/runbooks/"
)

// metric is a row of docs/metrics.md.
type metric struct {
	labels []string
	merge  parser.ItemType // how its values of several processes become one; 0: it depends on the question
}

// mergedBy returns how values of several processes become one: those of the database are the same, shares are added.
func mergedBy(name, meaning string, ofProcess bool) parser.ItemType {
	switch share := regexp.MustCompile(`^([^1].*)?\bthis (process|relay)\b`); {
	case !ofProcess:
		return parser.MAX
	case strings.HasSuffix(name, "_total"), !strings.HasSuffix(name, "_seconds") && share.MatchString(meaning):
		return parser.SUM
	}
	return 0
}

// documented reads docs/metrics.md: its metrics, histograms with the names of their parts.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	manual, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics, ofProcess := map[string]metric{}, false
	row := regexp.MustCompile("(?m)^Of the process:$|^From the database:$|" +
		"^\\| `(effectonce_\\w+)(?:\\{([^}]*)\\})?` \\| ?((histogram)?.*)\\|$")
	for _, m := range row.FindAllStringSubmatch(string(manual), -1) {
		name, labels := m[1], []string{"job", "instance"}
		if name == "" {
			ofProcess = strings.HasPrefix(m[0], "Of")
			continue
		}
		if m[2] != "" {
			labels = append(labels, strings.Split(m[2], ",")...)
		}
		if strings.HasPrefix(name, "effectonce_relay_") {
			labels = append(labels, "outbox") // of a run of many
		} else {
			labels = append(labels, "consumer")
		}
		metrics[name] = metric{labels, mergedBy(name, m[3], ofProcess)}
		if m[4] == "histogram" {
			metrics[name+"_sum"], metrics[name+"_count"] = metric{labels, parser.SUM}, metric{labels, parser.SUM}
			metrics[name+"_bucket"] = metric{append(slices.Clone(labels), "le"), parser.SUM}
		}
	}
	if len(metrics) < 50 {
		t.Fatalf("found %d metrics in the manual", len(metrics))
	}
	return metrics
}

// check parses an expression and holds its metrics and labels to the manual.
func check(t *testing.T, where, text string, metrics map[string]metric) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %s: %v", where, text, err)
		return
	}
	used := 0
	var known []string // labels of the metrics in the expression
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		used++
		m, ok := metrics[s.Name]
		labels := m.labels
		checkMerge(t, where, s.Name, m.merge, path)
		if strings.HasPrefix(s.Name, "idempotency_") {
			unknownInstruments(t, where, s.Name)
			labels, ok = []string{"job", "operation", "outcome", "failure", "kind", "le"}, true
		}
		if !ok {
			t.Errorf("%s: %s is not in docs/metrics.md", where, s.Name)
		}
		known = append(known, labels...)
		for _, m := range s.LabelMatchers {
			if m.Name != model.MetricNameLabel && !slices.Contains(labels, m.Name) {
				t.Errorf("%s: %s has no label %s", where, s.Name, m.Name)
			}
		}
		return nil
	})
	if used == 0 {
		t.Errorf("%s: %s asks for no metric", where, text)
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !slices.Contains(known, l) {
					t.Errorf("%s: grouped by %s, which none of its metrics has", where, l)
				}
			}
		}
		return nil
	})
}

// checkMerge: the innermost aggregation neither counts the one database once for each process, nor takes the share of
// one process for all.
func checkMerge(t *testing.T, where, name string, merge parser.ItemType, path []parser.Node) {
	t.Helper()
	wrong := map[parser.ItemType]parser.ItemType{parser.MAX: parser.SUM, parser.SUM: parser.MAX}[merge]
	for _, n := range slices.Backward(path) {
		if a, ok := n.(*parser.AggregateExpr); ok {
			if a.Op == wrong {
				t.Errorf("%s: %v of %s, of which docs/metrics.md wants the %v", where, a.Op, name, merge)
			}
			return
		}
	}
}

func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	return rulesOf(t, alertsFile)
}

func rulesOf(t *testing.T, file string) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}),
		slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func TestAlerts(t *testing.T) {
	metrics := documented(t)
	played, err := os.ReadFile("../../deploy/prometheus/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range rules(t) {
		check(t, r.Alert, r.Expr, metrics)
		if seen[r.Alert] || !strings.HasPrefix(r.Alert, "Effectonce") {
			t.Errorf("%s: want a name of its own that begins with Effectonce", r.Alert)
		}
		seen[r.Alert] = true
		if !regexp.MustCompile(r.Alert + `\b`).Match(played) {
			t.Errorf("%s: no series in alerts_test.yml make it fire", r.Alert)
		}
		if s := r.Labels["severity"]; s != "page" && s != "warning" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: no summary or description", r.Alert)
		}
		checkPage(t, r)
		checkBorn(t, r)
	}
}

// checkBorn: an alert counts what a process has counted before Prometheus reads it for the first time.
func checkBorn(t *testing.T, r rulefmt.Rule) {
	t.Helper()
	for _, m := range regexp.MustCompile(`increase\((\w+)\[1h\]\)`).FindAllStringSubmatch(r.Expr, -1) {
		if born := m[1] + " unless " + m[1] + " offset 1h"; !strings.Contains(r.Expr, born) {
			t.Errorf("%s: no increase has what %s counts at its start: or it with (%s)", r.Alert, m[1], born)
		}
	}
}

// checkPage: an alert leads to a page that there is, where Prometheus is told of the pages, and nowhere otherwise.
func checkPage(t *testing.T, r rulefmt.Rule) {
	t.Helper()
	expand := func(external map[string]string) string {
		t.Helper()
		data := template.AlertTemplateData(nil, external, "", promql.Sample{})
		text, err := template.NewTemplateExpander(t.Context(), "{{$externalLabels := .ExternalLabels}}"+
			r.Annotations["page_url"], r.Alert, data, model.Now(), nil, &url.URL{}, nil).Expand()
		if err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		return text
	}
	if text := expand(nil); text != "" {
		t.Errorf("%s: without an address page_url is %q", r.Alert, text)
	}
	const pages = "https://ops.example/events"
	page, ok := strings.CutPrefix(expand(map[string]string{"effectonce_pages": pages}), pages+"/")
	if page == "" {
		page = "{$}"
	}
	if !ok || !slices.Contains(ui.Routes(), ui.Route{Method: "GET", Path: "/" + page, Level: ui.View}) {
		t.Errorf("%s: page_url leads to %q, which is no page", r.Alert, page)
	}
}

// TestRunbooks: an alert leads to its section, each section belongs to an alert, and all answer the same questions.
func TestRunbooks(t *testing.T) {
	metrics, sections := documented(t), map[string]string{}
	files, err := filepath.Glob(runbooks + "*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Split(string(b), "\n## ")[1:] {
			name, text, _ := strings.Cut(text, "\n")
			sections[runbookURL+filepath.Base(f)+"#"+strings.ToLower(name)] = name
			checkRunbook(t, f+"#"+name, text, metrics)
		}
		unknownInstruments(t, f, string(b))
	}
	for _, r := range slices.Concat(rules(t), rulesOf(t, idempotencyFile)) {
		url := r.Annotations["runbook_url"]
		if sections[url] != r.Alert {
			t.Errorf("%s: runbook_url %s has no such section", r.Alert, url)
		}
		delete(sections, url)
	}
	for _, s := range slices.Sorted(maps.Keys(sections)) {
		t.Errorf("%s belongs to no alert", s)
	}
}

// checkRunbook: a section tells what the alert means, where to look, what to do, and what not.
func checkRunbook(t *testing.T, where, text string, metrics map[string]metric) {
	t.Helper()
	form := `(?s)^\n[A-Z].*\n\*\*Look\*\*\n\n- .*\x60relay .*\n\*\*Do\*\*\n\n- .*\n\*\*Do not\*\* `
	if !regexp.MustCompile(form).MatchString(text) {
		t.Errorf("%s: want what it means, and then Look with a command, Do, and Do not", where)
	}
	for _, m := range regexp.MustCompile(`\beffectonce_(?:relay|outbox|inbox|consumer)_\w+`).FindAllString(text, -1) {
		if _, ok := metrics[m]; !ok {
			t.Errorf("%s: %s is not in docs/metrics.md", where, m)
		}
	}
	// People mend things by commands, which lock, check and write down who did it.
	if at := regexp.MustCompile(`(?i)\b(update \w+ set|delete from|insert into)\b`).FindString(text); at != "" {
		t.Errorf("%s: SQL by hand: %s", where, at)
	}
}

func TestDashboard(t *testing.T) {
	b, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title string
		Panels     []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ H, W, X, Y int }
			Targets                  []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	metrics := documented(t)
	// What Grafana puts into an expression before Prometheus sees it.
	fill := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$consumer", ".*")
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q: its id is taken", p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q: no description or no expression", p.Title)
		}
		for _, target := range p.Targets {
			check(t, "panel "+p.Title, fill.Replace(target.Expr), metrics)
		}
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(
			v.Definition); v.Name != "datasource" &&
			(m == nil || !slices.Contains(metrics[m[1]].labels, m[2])) {
			t.Errorf("variable %s: %q", v.Name, v.Definition)
		}
	}
}

// TestAlertsFire lets promtool play series against the rules.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: apt-get install prometheus): the rules were parsed, and not played")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "../../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// TestLinks: what the documents link to inside the repository is there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	code := regexp.MustCompile("(?ms)^```.*?^```$")
	n := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md", "../../examples/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(string(b), ""), -1) {
				n++
				if _, err := os.Stat(filepath.Join(filepath.Dir(f), m[1])); err != nil {
					t.Errorf("%s: a link leads nowhere: %v", f, err)
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("found %d links", n)
	}
}

// TestChart: the Helm chart has copies of the rules, for a packaged chart cannot name files outside of it.
func TestChart(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"alerts.yml", "idempotency.yml"} {
		rules, err := os.ReadFile("../../deploy/prometheus/" + file)
		if err != nil {
			t.Fatal(err)
		}
		copied, err := os.ReadFile("../../deploy/helm/effectonce/rules/" + file)
		if err != nil || string(copied) != string(rules) {
			t.Errorf("cp deploy/prometheus/%s deploy/helm/effectonce/rules/ (%v)", file, err)
		}
	}
}
