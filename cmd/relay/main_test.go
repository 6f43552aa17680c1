package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop, removeBinary) }

// deadBroker is an address without a listener: port 1 is reserved, and connections to it are refused at once.
const deadBroker = "127.0.0.1:1"

// canary is a password that no output may contain.
const canary = "canary-7f3a"

// environment holds the variables of a run; other variables are not set.
type environment map[string]string

func (e environment) get(name string) string { return e[name] }

// process is the environment of a process: this one's, without the settings of a relay that its user may run.
func (e environment) process() []string {
	all := slices.DeleteFunc(os.Environ(), func(set string) bool { return strings.HasPrefix(set, "RELAY_") })
	for k, v := range e {
		all = append(all, k+"="+v)
	}
	return all
}

// with returns a copy with more variables.
func (e environment) with(pairs ...string) environment {
	out := environment{}
	for k, v := range e {
		out[k] = v
	}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// settings configures a fast relay on a database. Its time-outs are longer than any stall of a busy machine: what they
// lead to, such as a repetition in Kafka or a held event, is there only if a test shortens them.
func settings(db *pgtest.DB, brokers ...string) environment {
	return environment{
		"RELAY_DATABASE_URL": db.URL, "RELAY_KAFKA_BROKERS": strings.Join(brokers, ","), "RELAY_LISTEN": "127.0.0.1:0",
		"RELAY_PROBE_INTERVAL": "5ms", "RELAY_LOG_FORMAT": "json", "RELAY_LEASE": "1m", "RELAY_PUBLISH_TIMEOUT": "2m",
		"RELAY_DRAIN_TIMEOUT": "2m", "RELAY_HOLD_AFTER": "1h",
	}
}

func outboxDB(t *testing.T) *pgtest.DB {
	t.Helper()
	return pgtest.New(t, migrations.Outbox)
}

// fill appends n events over 50 keys; the payloads of a key count up from 0. from continues an earlier fill.
func fill(t *testing.T, db *pgtest.DB, topic string, n int, from ...int) {
	t.Helper()
	first := 0
	for _, f := range from {
		first += f
	}
	db.Exec(t, `insert into outbox_event (topic, key, type, payload)
		select $1, 'k' || (g % 50), 'T', convert_to((g / 50)::text, 'UTF8')
		from generate_series($2::int, $2::int + $3 - 1) g`, topic, first, n)
}

// command runs a command in this process and returns its result.
func command(t *testing.T, env environment, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs output
	code = run(t.Context(), args, env.get, &out, &errs)
	return code, out.String(), errs.String()
}

// output collects text that is written and read concurrently.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// instance is a running `relay run`, in this process or in one of its own.
type instance struct {
	t         *testing.T
	output    func() string
	done      <-chan struct{}
	code      func() int // valid once done is closed
	signal    func()
	interrupt func() // only for ownProcess
	base      string // of its URLs
}

// inProcess starts `relay run` within this process. It is stopped at the end of the test.
func inProcess(t *testing.T, env environment) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var errs output
	done, code := make(chan struct{}), 0
	go func() {
		defer close(done)
		code = run(ctx, []string{"run"}, env.get, io.Discard, &errs)
	}()
	t.Cleanup(func() { cancel(); <-done })
	i := &instance{t: t, output: errs.String, done: done, code: func() int { return code }, signal: cancel}
	i.awaitListening()
	return i
}

// ownProcess starts the built binary. It is killed at the end of the test.
func ownProcess(t *testing.T, env environment) (*instance, *child.Process) {
	t.Helper()
	return processOf(t, builtBinary(t), env)
}

// processOf is ownProcess with another binary.
func processOf(t *testing.T, path string, env environment) (*instance, *child.Process) {
	t.Helper()
	cmd := exec.Command(path, "run")
	cmd.Env = env.process()
	log := filepath.Join(t.TempDir(), "log")
	p, err := child.Start(cmd, log, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(syscall.SIGKILL, time.Minute) })
	i := &instance{
		t: t, done: p.Done(), code: func() int { return cmd.ProcessState.ExitCode() },
		signal: func() { _ = p.Signal(syscall.SIGTERM) }, interrupt: func() { _ = p.Signal(os.Interrupt) },
		output: func() string {
			b, err := os.ReadFile(log)
			if err != nil {
				return err.Error()
			}
			return string(b)
		},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(i.output())
		}
	})
	i.awaitListening()
	return i, p
}

var listening = regexp.MustCompile(`"msg":"listening","address":"([^"]+)"`)

func (i *instance) awaitListening() { i.base = "http://" + i.awaitLine(listening) }

// awaitLine returns the text in parentheses of a log line.
func (i *instance) awaitLine(line *regexp.Regexp) (found string) {
	i.t.Helper()
	pgtest.Await(i.t, "the relay's listening address", func() (bool, error) {
		if at := line.FindStringSubmatch(i.output()); at != nil {
			found = at[1]
			return true, nil
		}
		select {
		case <-i.done:
			return false, fmt.Errorf("the relay ended with %d: %s", i.code(), i.output())
		default:
			return false, nil
		}
	})
	return found
}

// get returns status and body of a page.
func (i *instance) get(path string) (int, string, error) {
	resp, err := http.Get(i.base + path)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// awaitPage waits for a status and returns the body.
func (i *instance) awaitPage(path string, status int) string {
	i.t.Helper()
	var body string
	pgtest.Await(i.t, fmt.Sprintf("%s answers %d", path, status), func() (bool, error) {
		got, text, err := i.get(path)
		body = text
		return got == status, err
	})
	return body
}

// end waits for the exit code.
func (i *instance) end() int {
	i.t.Helper()
	pgtest.Await(i.t, "the relay ends", func() (bool, error) {
		select {
		case <-i.done:
			return true, nil
		default:
			return false, nil
		}
	})
	return i.code()
}

func awaitDrained(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_event) and not exists (select from outbox_claim)`)
}

// envBinary names a built relay, such as a release's; then the tests run that one.
const envBinary = "EFFECTONCE_TEST_RELAY"

// binary is built once, by the first test that needs it.
var binary struct {
	sync.Mutex
	dir string
}

func builtBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(envBinary); path != "" {
		return path
	}
	binary.Lock()
	defer binary.Unlock()
	if binary.dir == "" {
		dir, err := os.MkdirTemp("", "relay-test")
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "relay"),
			".").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		binary.dir = dir
	}
	return filepath.Join(binary.dir, "relay")
}

func removeBinary() {
	http.DefaultClient.CloseIdleConnections()
	if binary.dir != "" {
		_ = os.RemoveAll(binary.dir)
	}
}

// opened is an outbox without a relay.
func opened(t *testing.T, db relay.DB, schema string) *relay.Outbox {
	t.Helper()
	box, err := relay.Open(db, schema)
	if err != nil {
		t.Fatal(err)
	}
	return box
}
