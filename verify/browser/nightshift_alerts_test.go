package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// hurry divides the times of the alert rules: a night is shorter than what they wait for.
const hurry = 10

var (
	lasts   = regexp.MustCompile(`for: (\d+)([mh])`)
	exceeds = regexp.MustCompile(`(_seconds\)+ > )(\d+)`)
)

// hurried divides the times that rules wait for. Ranges, such as of a rate, stay.
func hurried(rules string) string {
	rules = lasts.ReplaceAllStringFunc(rules, func(s string) string {
		m := lasts.FindStringSubmatch(s)
		return fmt.Sprintf("for: %ds", integer(m[1])*map[string]int{"m": 60, "h": 3600}[m[2]]/hurry)
	})
	return exceeds.ReplaceAllStringFunc(rules, func(s string) string {
		m := exceeds.FindStringSubmatch(s)
		return m[1] + strconv.Itoa(integer(m[2])/hurry)
	})
}

func integer(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// scraped are the metrics of a night's processes that run in the test's own.
type scraped struct {
	mu  sync.Mutex
	all []prometheus.Gatherer
}

func (s *scraped) Gather() ([]*dto.MetricFamily, error) {
	s.mu.Lock()
	all := prometheus.Gatherers(slices.Clone(s.all))
	s.mu.Unlock()
	return all.Gather()
}

// process has the metrics of one until it has ended. Once more under the same name it is the same one, started again.
func (s *scraped) process(name string) (to prometheus.Registerer, ended func()) {
	registry := prometheus.NewRegistry()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, registry)
	return prometheus.WrapRegistererWith(prometheus.Labels{"process": name}, registry), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = slices.DeleteFunc(s.all, func(g prometheus.Gatherer) bool { return g == registry })
	}
}

// watched starts a Prometheus with the rules of deploy/prometheus, which looks each second at the night's processes.
func (n *night) watched() {
	n.t.Helper()
	var err error
	if n.elsewhere, err = child.FreePort(); err != nil {
		n.t.Fatal(err)
	}
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		n.t.Fatal("prometheus is not installed (Debian: apt-get install prometheus)")
	}
	page := httptest.NewServer(promhttp.HandlerFor(n.scraped, promhttp.HandlerOpts{}))
	n.t.Cleanup(page.Close)
	s, err := child.NewServer("prometheus", func(s *child.Server) (*child.Process, error) {
		config := fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs: [{job_name: night, static_configs: [{targets: [%q, "127.0.0.1:%d"]}]}]
`, page.Listener.Addr(), n.elsewhere)
		rules, err := os.ReadFile("../../deploy/prometheus/alerts.yml")
		if err == nil {
			err = os.WriteFile(filepath.Join(s.Dir, "rules.yml"), []byte(hurried(string(rules))), 0o644)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(s.Dir, "prometheus.yml"), []byte(config), 0o644)
		}
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(binary, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
			"--web.listen-address="+s.Addr())
		cmd.Dir = s.Dir
		p, err := child.Start(cmd, filepath.Join(s.Dir, "log"), syscall.SIGKILL)
		if err != nil {
			return nil, err
		}
		return p, p.Await(time.Minute, func(ctx context.Context) error {
			_, err := alertsAt(ctx, s.Addr())
			return err
		})
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(s.Close)
	n.prometheus = s.Addr()
}

// asked is the data of an answer of Prometheus.
func asked(ctx context.Context, url string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(&struct{ Data any }{data})
}

// measured waits until Prometheus has read what an expression asks for.
func (n *night) measured(expression string) {
	n.t.Helper()
	pgtest.Await(n.t, expression, func() (bool, error) {
		var answer struct{ Result []any }
		err := asked(n.t.Context(), "http://"+n.prometheus+"/api/v1/query?query="+url.QueryEscape(expression), &answer)
		return len(answer.Result) > 0, err
	})
}

// alertsAt are the alerts that fire, with their severity.
func alertsAt(ctx context.Context, addr string) (map[string]string, error) {
	var answer struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	if err := asked(ctx, "http://"+addr+"/api/v1/alerts", &answer); err != nil {
		return nil, err
	}
	fire := map[string]string{}
	for _, a := range answer.Alerts {
		if a.State == "firing" {
			fire[strings.TrimPrefix(a.Labels["alertname"], "Effectonce")] = a.Labels["severity"]
		}
	}
	return fire, nil
}

// rings waits until the failure's alert fires, and notes all that do.
func (n *night) rings(f failure) {
	n.t.Helper()
	began := time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		fire, err := alertsAt(n.t.Context(), n.prometheus)
		if err != nil {
			n.t.Fatal(err)
		}
		n.fire = nil
		for name, severity := range fire {
			n.fire = append(n.fire, name+" ("+severity+")")
		}
		slices.Sort(n.fire)
		if f.alert == "" || fire[f.alert] != "" {
			n.rang = time.Since(began)
			n.t.Logf("alerts: %v", n.fire)
			return
		}
		if time.Since(began) > patience {
			n.t.Fatalf("%s does not fire: %v", f.alert, n.fire)
		}
		<-tick.C
	}
}

func TestHurriedRules(t *testing.T) {
	const rule = "expr: time() - max by (job) (x_seconds) > %s or (min (y_ahead_seconds)) < 2 * 86400\nfor: %s\n"
	if got := hurried(fmt.Sprintf(rule, "120", "5m")); got != fmt.Sprintf(rule, "12", "30s") {
		t.Errorf("%s", got)
	}
}
