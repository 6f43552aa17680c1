// Package compose starts what deploy/compose describes: the files are validated, and with EFFECTONCE_COMPOSE=1 the
// services that are built from this tree run as processes, with their settings, over the tests' Postgres and Kafka.
package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

const dir = "../../../deploy/compose/"

// load validates a file against the schema of Compose, and resolves what it includes and extends.
func load(t *testing.T, file string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{dir + file}, cli.WithConsistency(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// TestFiles: the files are valid, what they mount is there, and what runs a binary of this tree has few rights.
func TestFiles(t *testing.T) {
	t.Parallel()
	for file, services := range map[string]int{"compose.min.yaml": 6, "compose.yaml": 12} {
		project := load(t, file)
		if len(project.Services) != services {
			t.Errorf("%s has %d services, want %d", file, len(project.Services), services)
		}
		for name, s := range project.Services {
			for _, v := range s.Volumes {
				if v.Type == types.VolumeTypeBind {
					if _, err := os.Stat(v.Source); err != nil {
						t.Errorf("%s: %s mounts what is not there: %v", file, name, err)
					}
				}
			}
			for _, p := range s.Ports {
				if p.HostIP != "127.0.0.1" {
					t.Errorf("%s: port %s of %s is open to other machines", file, p.Published, name)
				}
			}
			if s.Build != nil && !(s.ReadOnly && slices.Equal(s.CapDrop, []string{"ALL"})) {
				t.Errorf("%s: %s may write to its image, or has capabilities", file, name)
			}
		}
	}
}

// TestServices: a payment is accepted, published, booked once and mailed once; the pages want a password; Prometheus'
// targets answer.
func TestServices(t *testing.T) {
	if os.Getenv("EFFECTONCE_COMPOSE") == "" {
		t.Skip("make compose runs it: it builds four programs")
	}
	p := prepare(t)
	for _, name := range p.order() {
		p.start(t, name)
	}
	for _, name := range []string{"relay", "pages", "payments", "ledger", "email"} {
		p.await(t, name, "/healthz")
	}
	body := `{"account_id":"acc-1","amount":100,"currency":"EUR"}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.address("payments")+"/payments",
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "1")
	r.Header.Set("X-Tenant", "acme")
	if code := status(t, r); code != http.StatusCreated {
		t.Fatalf("the payment is answered with %d", code)
	}
	pgtest.AwaitSQL(t, p.db, `select count(*) = 2 from ledger_entry`)
	pgtest.Await(t, "the receipt", func() (bool, error) { return p.mails.Accepted() == 1, nil })
	for user, want := range map[string]int{"": http.StatusUnauthorized, "night": http.StatusOK} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.address("pages")+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			r.SetBasicAuth(user, "effectonce")
		}
		if code := status(t, r); code != want {
			t.Errorf("the pages answer %d to user %q, want %d", code, user, want)
		}
	}
	for _, target := range targets(t) {
		p.await(t, target, "/metrics")
	}
	for name, process := range p.running {
		process.Stop(syscall.SIGTERM, graceful)
		if err := process.Wait(); err != nil {
			t.Errorf("%s ends with %v: %s", name, err, process.LogTail())
		}
	}
}

// targets are the services that prometheus.yml scrapes, at the port at which they listen.
func targets(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(dir + "prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Scrapes []struct {
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	project := load(t, "compose.yaml")
	for _, s := range c.Scrapes {
		for _, target := range s.Static[0].Targets {
			name, port, _ := net.SplitHostPort(target)
			if _, listens := listener(project.Services[name]); listens != ":"+port {
				t.Errorf("prometheus.yml scrapes %s, which listens at %q", target, listens)
			}
			names = append(names, name)
		}
	}
	return names
}

// listener is the variable that says where a service listens, and its value.
func listener(s types.ServiceConfig) (variable, value string) {
	for name, v := range s.Environment {
		if strings.HasSuffix(name, "_LISTEN") {
			return name, *v
		}
	}
	return "", ""
}

// processes are the services of compose.yaml that are built from this tree, as processes on this machine.
type processes struct {
	project *types.Project
	bin     string
	db      *pgtest.DB
	brokers string
	mails   *mailbox.Mailbox
	ports   map[string]int // by service
	running map[string]*child.Process
}

// graceful is what Compose grants a service, as stop_grace_period says.
const graceful = 30 * time.Second

func prepare(t *testing.T) *processes {
	t.Helper()
	p := &processes{
		project: load(t, "compose.yaml"), bin: t.TempDir(), ports: map[string]int{},
		running: map[string]*child.Process{},
	}
	build := exec.Command("go", "build", "-o", p.bin+"/", "./cmd/relay", "./examples/payments", "./examples/ledger",
		"./examples/email")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	p.db = pgtest.NewDatabase(t)
	brokers := kafkatest.Brokers(t)
	p.brokers = strings.Join(brokers, ",")
	topics := p.project.Services["topics"].Command
	option := func(name string) string { return topics[slices.Index(topics, name)+1] }
	partitions, err := strconv.Atoi(option("--partitions"))
	if err != nil {
		t.Fatal(err)
	}
	kafkatest.CreateTopic(t, brokers, option("--topic"), partitions)
	if p.mails, err = mailbox.New(mailbox.Config{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.mails.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return p
}

// order are those services, each behind what it depends on.
func (p *processes) order() (names []string) {
	var add func(name string)
	add = func(name string) {
		s := p.project.Services[name]
		for _, d := range s.GetDependencies() {
			add(d)
		}
		if s.Build != nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for name := range p.project.Services {
		add(name)
	}
	return names
}

// start starts a service as Compose would, with the servers of this machine in place of the named ones. One that
// others wait for the end of is waited for.
func (p *processes) start(t *testing.T, name string) {
	t.Helper()
	s := p.project.Services[name]
	cmd := exec.Command(filepath.Join(p.bin, s.Build.Target), s.Command...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	variable, _ := listener(s)
	for key, v := range s.Environment {
		value := *v
		switch {
		case key == variable:
			port, err := child.FreePort()
			if err != nil {
				t.Fatal(err)
			}
			p.ports[name] = port
			value = fmt.Sprintf("127.0.0.1:%d", port)
		case strings.Contains(value, "@postgres:5432/"):
			value = p.db.URL
		case value == "kafka:9092":
			value = p.brokers
		case value == "mail:1025":
			value = p.mails.Addr()
		}
		for _, mount := range s.Volumes {
			if value == mount.Target {
				value = mount.Source
			}
		}
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	process, err := child.Start(cmd, filepath.Join(p.bin, name+".log"), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	if name == "migrate" {
		if err := process.Wait(); err != nil {
			t.Fatalf("migrate: %v: %s", err, process.LogTail())
		}
		return
	}
	p.running[name] = process
	t.Cleanup(func() { process.Stop(syscall.SIGKILL, graceful) })
}

func (p *processes) address(name string) string {
	return fmt.Sprintf("http://127.0.0.1:%d", p.ports[name])
}

// await asks a service until it answers with 200, or wants a password.
func (p *processes) await(t *testing.T, name, path string) {
	t.Helper()
	pgtest.Await(t, name+path, func() (bool, error) {
		select {
		case <-p.running[name].Done():
			return false, fmt.Errorf("%s has ended: %s", name, p.running[name].LogTail())
		default:
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.address(name)+path, nil)
		if err != nil {
			return false, err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, nil // it does not listen yet
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK || res.StatusCode == http.StatusUnauthorized, nil
	})
}

func status(t *testing.T, r *http.Request) int {
	t.Helper()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// TestDashboards: Grafana reads the folder that compose.yaml mounts, and finds dashboards there.
func TestDashboards(t *testing.T) {
	t.Parallel()
	grafana := load(t, "compose.yaml").Services["grafana"]
	var c struct {
		Providers []struct{ Options struct{ Path string } }
	}
	text, err := os.ReadFile(dir + "grafana/dashboards/effectonce.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &c); err != nil || len(c.Providers) != 1 {
		t.Fatalf("%v, %d providers", err, len(c.Providers))
	}
	for _, v := range grafana.Volumes {
		if v.Target != c.Providers[0].Options.Path {
			continue
		}
		text, err := os.ReadFile(filepath.Join(v.Source, "effectonce.json"))
		if err != nil || !json.Valid(text) {
			t.Errorf("%v", err)
		}
		return
	}
	t.Errorf("nothing is mounted at %s", c.Providers[0].Options.Path)
}
