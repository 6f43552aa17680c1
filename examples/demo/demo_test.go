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
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/examples/email/mailbox"
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

// find waits until the output has the last of some patterns, and returns what it has in parentheses the last time.
func (d *demo) find(t *testing.T, pattern string) (found string) {
	t.Helper()
	p := regexp.MustCompile(pattern)
	pgtest.Await(t, pattern, func() (bool, error) {
		all := p.FindAllStringSubmatch(d.out.String(), -1)
		if all == nil && strings.Contains(d.out.String(), "demo: ") {
			d.wait(t)
			return false, fmt.Errorf("the demo has ended:\n%s", d.out)
		}
		if all != nil {
			found = all[len(all)-1][1]
		}
		return all != nil, nil
	})
	return found
}

// TestEmbedded: what is killed from outside while the page is open starts again.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	d := start(t, "--keep", "--payments=200", "--rate=200", "--listen=127.0.0.1:0")
	d.showsPages(t)
	page, api := d.find(t, `the page   (\S+)`), d.find(t, `payments   curl .* (http\S+)`)
	for _, name := range []string{"email", "relay-1"} {
		pid, err := strconv.Atoi(d.find(t, `started `+name+` again \(pid (\d+)\)`))
		if err == nil {
			var killed *os.Process
			if killed, err = os.FindProcess(pid); err == nil {
				err = killed.Kill()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		d.find(t, name+` (was killed from outside \(signal: killed\)): it runs again`)
	}
	r, err := http.NewRequest(http.MethodPost, api,
		strings.NewReader(`{"account_id":"me","amount":100,"currency":"EUR"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "mine-1")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	d.find(t, `(payments 201 .* ledger pairs 201   mails 201)`)
	if resp, err = http.Get(page + "state"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	state, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(state), "email was killed from outside") {
		t.Errorf("the page does not say what was killed: %v\n%s", err, state)
	}
	if err := d.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
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

// TestNotKept: off a terminal no address is printed that is gone at the end, and the last line says why.
func TestNotKept(t *testing.T) {
	t.Parallel()
	d := start(t, "--payments=10", "--no-faults")
	if code := d.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if out := d.out.String(); strings.Contains(out, "http://") || !strings.HasSuffix(out, "-keep keeps it.\n") {
		t.Error(out)
	}
}

// TestKeepFails: a child that cannot start ends the demo, which names it.
func TestKeepFails(t *testing.T) {
	t.Parallel()
	db, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	display := newDisplay(t.Output(), 1)
	c, err := newChildren(t.TempDir(), settings{DatabaseURL: "mysql://here"}, display.printf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	if err := c.start("email", roleEmail); err != nil {
		t.Fatal(err)
	}
	s := &stack{failed: make(chan error), box: &mailbox.Mailbox{}}
	p := &play{children: c, way: &way{s: s, db: db}, display: display}
	err = keep(t.Context(), s, p, t.Output())
	if want := "ended by itself (exit status 1):\n"; err == nil || !strings.HasPrefix(err.Error(), "email (pid ") ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if len(p.lines) != 1 || !strings.Contains(p.lines[0], "email ended by itself (exit status 1): it runs again") {
		t.Errorf("the page says %q", p.lines)
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
