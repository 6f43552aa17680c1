package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// envMain makes this test binary the demo itself.
const envMain = "EFFECTONCE_DEMO_TEST_MAIN"

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(childMain(role))
	}
	if os.Getenv(envMain) != "" {
		main()
	}
	pgtest.Main(m, kafkatest.Stop)
}

// demo is a demo with embedded servers in its own process, as `go run ./examples/demo` starts it.
type demo struct {
	*exec.Cmd
	tmp string
	out *output
}

func start(t *testing.T, args ...string) *demo {
	t.Helper()
	// Under root, Postgres runs as another account, which has no access to t.TempDir.
	tmp, err := os.MkdirTemp("", "effectonce-demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{Cmd: exec.Command(self, args...), tmp: tmp, out: &output{}}
	d.Env = append(os.Environ(), envMain+"=1", "TMPDIR="+tmp)
	d.Stdout, d.Stderr = d.out, d.out
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Process.Kill() })
	return d
}

// wait waits for the process, checks that it has left no file, and returns its exit code. It skips the test when the
// demo has to download Postgres.
func (d *demo) wait(t *testing.T) int {
	t.Helper()
	_ = d.Wait()
	if strings.Contains(d.out.String(), "demo: downloading Postgres") {
		t.Skipf("Postgres cannot be fetched here:\n%s", d.out)
	}
	left, err := os.ReadDir(d.tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	return d.ProcessState.ExitCode()
}

// TestPage: the demo's page is this machine's, and of no other site; its buttons wait for the demo's payments.
func TestPage(t *testing.T) {
	t.Parallel()
	p := &play{busy: "the payments of the demo", way: &way{}}
	page := p.routes(t.Context(), http.NotFoundHandler())
	for _, c := range []struct {
		method, path, host, site string
		want                     int
	}{
		{"GET", "/", "localhost", "", http.StatusOK},
		{"GET", "/page.js", "127.0.0.1", "", http.StatusOK},
		{"GET", "/", "evil.example", "", http.StatusForbidden},
		{"POST", "/do/pay", "evil.example", "", http.StatusForbidden},
		{"POST", "/do/pay", "localhost", "cross-site", http.StatusForbidden},
		{"POST", "/do/pay", "localhost", "same-origin", http.StatusConflict},
		{"POST", "/do/nothing", "localhost", "same-origin", http.StatusNotFound},
		{"GET", "/do/pay", "localhost", "", http.StatusNotFound},
	} {
		r := httptest.NewRequest(c.method, "http://"+c.host+c.path, nil)
		r.RemoteAddr = "127.0.0.1:5000"
		r.Header.Set("Sec-Fetch-Site", c.site)
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%+v: %d %s", c, w.Code, w.Body)
		}
	}
	p.free()
	p.way.kafkaAway.Store(true)
	for what := range wantsKafka {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/do/"+what, nil)
		r.RemoteAddr = "127.0.0.1:5000"
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "bring it back first") {
			t.Errorf("%s without Kafka: %d %s", what, w.Code, w.Body)
		}
	}
}

// showsPages looks at the page while payments pass.
func (d *demo) showsPages(t *testing.T) {
	t.Helper()
	address := regexp.MustCompile(`the page is at (\S+)`)
	pgtest.Await(t, "the pages", func() (bool, error) {
		m := address.FindStringSubmatch(d.out.String())
		if m == nil {
			if strings.Contains(d.out.String(), "demo: ") {
				d.wait(t)
				return false, fmt.Errorf("the demo has ended:\n%s", d.out)
			}
			return false, nil
		}
		resp, err := http.Get(m[1] + "operate/consumers")
		if err != nil {
			return false, err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode == http.StatusOK && bytes.Contains(body, []byte("ledger")) &&
			bytes.Contains(body, []byte("email")), err
	})
}

// output is the output of a process, readable while it runs.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

func TestEmbedded(t *testing.T) {
	t.Parallel()
	d := start(t, "--payments=200", "--rate=200")
	d.showsPages(t)
	if code := d.wait(t); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, d.out)
	}
	for _, want := range []string{
		`(?m)^  payments +200   of `,
		`(?m)^  outbox rows left +0$`,
		`(?m)^  records in Kafka +2\d\d   of 200 events: [1-9]\d* duplicates`,
		`(?m)^  inbox rows of email +200$`,
		`(?m)^  inbox rows of ledger +200$`,
		`(?m)^  ledger pairs +200 .* balance of all entries is 0`,
		`(?m)^  notifications sent +200   and 0 not sent`,
		`(?m)^  mails accepted +200   2 mails were accepted without a reply`,
		`killed relay-1 \(kill -9, pid \d+\)`, `started relay-1 again`,
		`(?m)^  card charges +20   of .* ledger; completed by recovery: [1-9]`,
		`killed payments`, `started payments again`,
		`killed ledger`, `started ledger again`, `killed email`, `started email again`,
		`delivered [1-9]\d* records a second time`,
		`; 10 requests were sent twice`,
		`(?m)^Every payment has exactly one ledger pair and one mail, and every card one charge\.$`,
	} {
		if !regexp.MustCompile(want).MatchString(d.out.String()) {
			t.Errorf("the output has no %s", want)
		}
	}
	if t.Failed() {
		t.Log(d.out)
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	d := start(t, "--payments=100000", "--rate=50")
	pgtest.Await(t, "booked payments", func() (bool, error) {
		if strings.Contains(d.out.String(), "demo: ") {
			d.wait(t)
			return false, fmt.Errorf("the demo has ended:\n%s", d.out)
		}
		return regexp.MustCompile(`booked [1-9]`).MatchString(d.out.String()), nil
	})
	processes := child.Below(d.Process.Pid)
	// Two relays, two workers, and Postgres with its backends.
	if runtime.GOOS == "linux" && len(processes) < 5 {
		t.Errorf("%d processes, want 5 and more", len(processes))
	}
	if err := d.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := d.wait(t); code != codeInterrupted {
		t.Errorf("exit code %d, want %d:\n%s", code, codeInterrupted, d.out)
	}
	for _, left := range processes.Left() {
		t.Error(left)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--payments=0"},
		{"--rate=0"},
		{"--payments=many"},
		{"--nonsense"},
		{"--database-url=mysql://here"},
	} {
		var out, errs bytes.Buffer
		if code := command(t.Context(), args, &out, &errs, nil); code != 2 || errs.Len() == 0 {
			t.Errorf("%v: exit code %d with %q", args, code, errs.String())
		}
	}
}
