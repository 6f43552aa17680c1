// Package copies does what somebody does who copies an example, or has `relay-dev init` write a service: it builds it
// in a module of its own, where no internal package can be imported, and runs it over the tests' Postgres and Kafka.
package copies

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

const (
	ours   = "github.com/effectonce/effectonce"
	theirs = "example.com/shop"
)

// program is an example, and one unit of its work.
type program struct {
	init   string // the flag of `relay-dev init` that writes it; empty: it is a copy
	prefix string // of its variables
	// rename are names in its code that other tests use in the same Kafka.
	rename []string
	topic  string // which it consumes, as in rename
	group  string // likewise
	// locked is the table that work waits for. Empty: the program works by itself.
	locked string
	// request is a request of the program's own; the first one comes before the tables.
	request string
	body    string
	event   func(topic string) (event.Event, error)
	prepare func(t *testing.T, r *running)
	env     []string
	done    string // SQL: true when the work is committed, once
}

func payment(topic string) (event.Event, error) {
	return event.NewJSON(event.Event{Topic: topic, Key: "acc-1", Type: contract.TypePaymentCreated},
		contract.PaymentCreated{PaymentID: event.NewID(), AccountID: "acc-1", Amount: 100, Currency: "EUR"})
}

func made(topic string) (event.Event, error) {
	return event.NewJSON(event.Event{Topic: topic, Key: "acc-1", Type: "PaymentMade"}, map[string]any{
		"id": event.NewID(), "account": "acc-1", "amount": 1999,
	})
}

var programs = map[string]program{
	"embed": {
		rename: []string{"orders", "receipts", "revenue"}, topic: "orders", group: "revenue",
		done: "select count(*) = 1 and sum(total) = 1999 from revenue",
	},
	"edge": {
		locked: "orders", request: "POST /orders", body: `{"item":"tea","amount":2}`,
		done: "select count(*) = 1 from orders",
	},
	"payments": {
		prefix: "PAYMENTS_", locked: "payment", request: "POST /payments",
		body: `{"account_id":"acc-1","amount":100,"currency":"EUR"}`,
		done: "select count(*) = 1 and (select count(*) = 1 from outbox_event) from payment",
	},
	"ledger": {
		prefix: "LEDGER_", topic: "payments", group: "ledger", locked: "ledger_entry", event: payment,
		done: "select count(*) = 2 and sum(amount) = 0 from ledger_entry",
	},
	"email": {
		prefix: "EMAIL_", topic: "payments", group: "email", locked: "email_notification", event: payment,
		env:  []string{"EMAIL_SMTP_ADDR=127.0.0.1:1"},
		done: "select count(*) = 1 from email_notification",
	},
}

// twice are the ways to the services of `relay-dev init`; each makes the same payment twice.
var twice = map[string]func(t *testing.T, r *running){
	"--http": func(t *testing.T, r *running) {
		for range 2 {
			code, answer, _ := r.request(t, "POST /payments", `{"account":"acc-1","amount":1999}`)
			if code != http.StatusCreated {
				t.Fatalf("POST /payments: %d %s", code, answer)
			}
		}
		r.relay(t)
	},
	"--sql": func(t *testing.T, r *running) {
		id := event.NewID()
		for range 2 {
			r.db.Exec(t, "select pay($1, 'acc-1', 1999)", id)
		}
		r.relay(t)
	},
	"--worker": func(t *testing.T, r *running) {
		e, err := made(r.topic)
		if err != nil {
			t.Fatal(err)
		}
		publish(t, e, e)
	},
}

// TestServices is TestPrograms for what `relay-dev init` writes. A payment that is made twice is booked once.
func TestServices(t *testing.T) {
	if !draw.Nightly() {
		t.Skip("by night; TestInitCompiles of cmd/relay-dev compiles them")
	}
	for kind, pay := range twice {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			program{
				init: kind, rename: []string{"payments", "ledger"}, topic: "payments", group: "ledger",
				locked: "ledger_entry", event: made,
				done: "select count(*) = 2 and sum(amount) = 3998 from ledger_entry",
				prepare: func(t *testing.T, r *running) {
					pay(t, r)
					pgtest.AwaitSQL(t, r.db, "select count(*) = 1 and sum(amount) = 1999 from ledger_entry")
				},
			}.run(t, "")
		})
	}
}

// relay runs a relay until the test ends.
func (r *running) relay(t *testing.T) {
	t.Helper()
	kafka, err := publisher.NewKafka(kafkatest.Brokers(t), publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	publish, err := relay.New(r.db.Pool, kafka, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- publish.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		kafka.Close()
	})
}

// TestPrograms: a copy of each example builds. It lives and is not ready before its database is there, and answers a
// request with 503 until then. After a SIGTERM it finishes the work that is under way, exits with 0, and leaves its
// group.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds five programs")
	}
	found, err := filepath.Glob("../../*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		name := filepath.Base(filepath.Dir(path))
		if _, known := programs[name]; !known && name != "demo" && name != "watermill" {
			t.Errorf("examples/%s is a program that nobody copies here", name)
		}
	}
	if len(found) != len(programs)+2 {
		t.Errorf("%d programs, want %d", len(found), len(programs)+2)
	}
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.run(t, name)
		})
	}
}

func (p program) run(t *testing.T, name string) {
	r := &running{db: pgtest.New(t)}
	names := map[string]string{}
	for _, old := range append(slices.Clone(p.rename), p.topic, p.group) {
		names[old] = "copies-" + uuid.NewString()
	}
	var brokers []string
	if p.topic != "" {
		brokers = kafkatest.Brokers(t)
	}
	for old, name := range names {
		if p.topic != "" && old != p.group {
			kafkatest.CreateTopic(t, brokers, name, 3)
		}
	}
	var renamed []string
	for _, old := range p.rename {
		renamed = append(renamed, strconv.Quote(old), strconv.Quote(names[old]), "'"+old+"'", "'"+names[old]+"'")
	}
	r.topic = names[p.topic]
	binary := p.build(t, name, strings.NewReplacer(renamed...))

	proxy := pgtest.NewProxy(t, r.db.URL)
	proxy.Refuse(true)
	env := append([]string{p.prefix + "DATABASE_URL=" + proxy.URL()}, p.env...)
	if p.topic != "" {
		env = append(env, p.prefix+"KAFKA_BROKERS="+strings.Join(brokers, ","))
	}
	if p.topic != "" && p.prefix != "" {
		env = append(env, p.prefix+"TOPIC="+names[p.topic], p.prefix+"GROUP="+names[p.group])
	}
	r.start(t, binary, p.prefix, env)

	r.await(t, "/healthz", http.StatusOK)
	if code, answer, _ := r.request(t, "GET /readyz", ""); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz is %d before the database is there: %s", code, answer)
	}
	if p.request != "" {
		code, answer, header := r.request(t, p.request, p.body)
		if code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
			t.Errorf("%s is answered with %d %v before the database is there: %s", p.request, code, header, answer)
		}
	}
	proxy.Refuse(false)
	r.await(t, "/readyz", http.StatusOK)
	r.await(t, "/healthz/moving", http.StatusOK)
	if p.prepare != nil {
		p.prepare(t, r)
	}
	if p.locked == "" {
		pgtest.AwaitSQL(t, r.db, p.done)
		r.end(t, func() {})
	} else {
		p.endAtWork(t, r)
	}
	if done := pgtest.One[bool](t, r.db, p.done); !done {
		t.Errorf("its work is not committed: not %s", p.done)
	}
	if p.topic != "" {
		group := describe(t, brokers, names[p.group])
		if group.State != "Empty" || len(group.Members) != 0 {
			t.Errorf("its group is %s, with %d members: %s", group.State, len(group.Members), r.process.LogTail())
		}
	}
}

// endAtWork ends the program while its work waits for a lock.
func (p program) endAtWork(t *testing.T, r *running) {
	t.Helper()
	lock, err := r.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	free := func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }
	defer free()
	if _, err := lock.Exec(t.Context(), "lock table "+p.locked+" in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	answered := make(chan string, 1)
	if p.event != nil {
		e, err := p.event(r.topic)
		if err != nil {
			t.Fatal(err)
		}
		publish(t, e)
		answered <- ""
	} else {
		go func() {
			code, answer, _ := r.request(t, p.request, p.body)
			if code == http.StatusCreated {
				answer = ""
			}
			answered <- answer
		}()
	}
	// A sender of mails waits for the lock too, with another statement.
	pgtest.AwaitSQL(t, r.db, "select exists (select from pg_stat_activity where query ~* 'insert into' and "+
		"$1 = any (pg_blocking_pids(pid)))", int32(lock.Conn().PgConn().PID()))
	r.end(t, free)
	if answer := <-answered; answer != "" {
		t.Errorf("the request under way was answered with %s", answer)
	}
}

func publish(t *testing.T, events ...event.Event) {
	t.Helper()
	for i := range events {
		events[i].Position.Epoch = uuid.NewString() + ".1" // a relay's, so that it keeps its id
	}
	kafka, err := publisher.NewKafka(kafkatest.Brokers(t), publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer kafka.Close()
	for _, err := range kafka.Publish(t.Context(), events) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func describe(t *testing.T, brokers []string, group string) kmsg.DescribeGroupsResponseGroup {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	res, err := req.RequestWith(t.Context(), client)
	if err != nil || len(res.Groups) != 1 {
		t.Fatalf("describing the group %s: %v", group, err)
	}
	return res.Groups[0]
}

// running is a program that runs.
type running struct {
	db      *pgtest.DB
	process *child.Process
	address string
	topic   string // that it consumes
}

func (r *running) start(t *testing.T, binary, prefix string, env []string) {
	t.Helper()
	port, err := child.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	r.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	cmd := exec.Command(binary)
	cmd.Dir, cmd.Env = t.TempDir(), append(env, prefix+"LISTEN="+r.address)
	if r.process, err = child.Start(cmd, binary+".log", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.process.Stop(syscall.SIGKILL, time.Minute) })
}

// request sends "METHOD /path". The code is 0 when there is no answer.
func (r *running) request(t *testing.T, what, body string) (code int, answer string, header http.Header) {
	method, path, _ := strings.Cut(what, " ")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.address+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error(), nil
	}
	req.Header.Set("Idempotency-Key", "k")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return res.StatusCode, fmt.Sprintf("%d %s", res.StatusCode, b), res.Header
}

func (r *running) await(t *testing.T, path string, want int) {
	t.Helper()
	pgtest.Await(t, path, func() (bool, error) {
		select {
		case <-r.process.Done():
			return false, fmt.Errorf("it has ended: %s", r.process.LogTail())
		default:
		}
		code, _, _ := r.request(t, "GET "+path, "")
		return code == want, nil
	})
}

// end sends SIGTERM, calls then when the program has got it, and waits for its end.
func (r *running) end(t *testing.T, then func()) {
	t.Helper()
	if err := r.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "that it listens no more", func() (bool, error) {
		code, _, _ := r.request(t, "GET /healthz", "")
		return code == 0, nil
	})
	then()
	if err := r.process.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v: %s", err, r.process.LogTail())
	}
}

// build copies examples/name into a module of its own, with the folders of examples that it imports, or has relay-dev
// write it; builds it, and runs its tests.
func (p program) build(t *testing.T, name string, rename *strings.Replacer) (binary string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shop")
	if p.init != "" {
		p.write(t, dir, rename)
		return compile(t, dir, ".")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	module(t, dir)
	for folders, i := []string{name}, 0; i < len(folders); i++ {
		for _, imported := range copyFolder(t, folders[i], dir, rename) {
			if !slices.Contains(folders, imported) {
				folders = append(folders, imported)
			}
		}
	}
	return compile(t, dir, "./"+name)
}

// write has relay-dev write a service.
func (p program) write(t *testing.T, dir string, rename *strings.Replacer) {
	t.Helper()
	cmd := exec.Command("go", "run", ours+"/cmd/relay-dev", "init", p.init, dir)
	env, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	cache, proxy, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	if err != nil {
		t.Fatal(err)
	}
	// What it requires is here already, and checked by this repository's go.sum.
	cmd.Env = append(os.Environ(), "GOSUMDB=off", "GOPROXY=file://"+cache+"/cache/download,"+proxy)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("relay-dev init %s: %v\n%s", p.init, err, out)
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.[gs][oq]*")) // Go and SQL
	if err != nil || len(sources) == 0 {
		t.Fatal(err)
	}
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(rename.Replace(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func compile(t *testing.T, dir, name string) (binary string) {
	t.Helper()
	binary = filepath.Join(dir, "program")
	for _, args := range [][]string{{"build", "-o", binary, name}, {"test", name}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod",
			"DATABASE_URL="+pgtest.AdminURL(t))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("a copy of %s does not build, or fails: %v\n%s", name, err, out)
		}
	}
	return binary
}

// module makes a module with the requirements of the examples; those of this repository are in this tree.
func module(t *testing.T, dir string) {
	t.Helper()
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile("../../" + file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	edit := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command("go", append([]string{"mod", "edit"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go mod edit: %v", err)
		}
		return out
	}
	var mod struct {
		Replace []struct{ Old, New struct{ Path string } }
	}
	if err := json.Unmarshal(edit("-json"), &mod); err != nil {
		t.Fatal(err)
	}
	args := []string{"-module=" + theirs}
	for _, r := range mod.Replace {
		args = append(args, "-dropreplace="+r.Old.Path)
		if strings.Contains(r.Old.Path, "/internal/") {
			args = append(args, "-droprequire="+r.Old.Path)
			continue
		}
		path, err := filepath.Abs(filepath.Join("../..", r.New.Path))
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "-replace="+r.Old.Path+"="+path)
	}
	if len(args) < 3 {
		t.Fatal("the module of the examples replaces nothing")
	}
	edit(args...)
}

var imports = regexp.MustCompile(`"` + theirs + `/([a-z]+)[/"]`)

// copyFolder copies a folder of examples with those of its tests that are shown to users, and returns the folders of
// examples that it imports.
func copyFolder(t *testing.T, name, dir string, rename *strings.Replacer) (imported []string) {
	t.Helper()
	from := filepath.Join("../..", name)
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") && filepath.Base(path) != "main_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		code := string(text)
		if strings.HasSuffix(path, ".go") {
			code = rename.Replace(strings.ReplaceAll(code, `"`+ours+`/examples/`, `"`+theirs+`/`))
			for _, m := range imports.FindAllStringSubmatch(code, -1) {
				imported = append(imported, m[1])
			}
		}
		below, err := filepath.Rel("../..", path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, below)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, []byte(code), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return imported
}
