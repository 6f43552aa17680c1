package browser

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/metrics"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/ui"
)

// envNightShift is the variable for the document that the table of staged failures is written into, see
// `make nightshift`.
const envNightShift = "EFFECTONCE_NIGHTSHIFT"

// failure is staged on real servers, named by the overview, and mended.
type failure struct {
	name  string
	stage func(*night)
	// check and says are of the finding that names it.
	check, says string
	// mend does so by clicks. What no page can do, such as starting a process, it does as the finding says: do tells.
	mend func(*night)
	do   string
	// alert fires meanwhile. "": it is not urgent, or in no metric.
	alert string
	after string // fires once it is mended: of what was lost
}

// theTopic stands for the name of a night's topic in a check.
const theTopic = "{topic}"

// row is what was seen of a failure.
type row struct {
	name, says, mend  string
	named, rang, gone time.Duration
	fire              []string // the alerts
}

// night is a system with a failure: its database, its brokers and topic, and the tab of who has the night shift.
type night struct {
	*tab
	row
	db      *pgtest.DB
	server  *pgtest.Server // nil: the tests'
	pool    *pgxpool.Pool  // of the pages
	brokers []string
	topic   string
	outside func() // what somebody does outside of the pages

	dial       func(ctx context.Context, network, address string) (net.Conn, error) // nil: plain
	scraped    *scraped
	elsewhere  int    // the port of a worker that is a process of its own
	prometheus string // host:port
}

// TestNightShift stages failures that happen in production, with a real Postgres, Kafka, relay and worker, and mends
// them from the pages. It writes what it saw.
func TestNightShift(t *testing.T) {
	document := os.Getenv(envNightShift)
	if document == "" {
		t.Skip(envNightShift + " names no document: make nightshift")
	}
	kafkatest.RequireReal(t)
	var mu sync.Mutex
	staged := map[string]*row{} // nil: not seen, or not mended
	t.Cleanup(func() { writeTable(t, document, staged) })
	for _, f := range allFailures() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			mu.Lock()
			staged[f.name] = nil
			mu.Unlock()
			n := newNight(t)
			n.name = f.name
			f.stage(n)
			f.check = strings.ReplaceAll(f.check, theTopic, n.topic)
			n.openOverview()
			n.sees(f)
			n.rings(f)
			n.mends(f)
			if f.after != "" {
				n.rings(failure{alert: f.after})
			}
			if !t.Failed() {
				mu.Lock()
				defer mu.Unlock()
				n.says = strings.ReplaceAll(n.says, n.topic, "payments")
				n.row.mend = strings.ReplaceAll(n.row.mend, n.topic, "payments")
				staged[f.name] = &n.row
			}
		})
	}
}

func newNight(t *testing.T) *night {
	t.Helper()
	db := pgtest.NewDatabase(t, migrations.Outbox, migrations.Inbox, migrations.Idempotency)
	n := &night{
		tab: &tab{t: t}, db: db, pool: db.Pool, brokers: kafkatest.Brokers(t), topic: kafkatest.Topic(t, 2),
		scraped: &scraped{},
	}
	n.watched()
	return n
}

// quiet logs nothing: failures are what this is about.
var quiet = slog.New(slog.DiscardHandler)

// runs starts what runs until it is stopped, or the test ends.
func (n *night) runs(run ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, one := range run {
		running.Go(func() { _ = one(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	n.t.Cleanup(stop)
	return stop
}

// relay starts one, and waits until it is known.
func (n *night) relay(pool *pgxpool.Pool, cfg relay.Config) (stop func()) {
	t := n.t
	t.Helper()
	box, err := relay.Open(pool, n.db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	to, ended := n.scraped.process("relay " + cfg.Name)
	m, err := metrics.NewRelay(to)
	if err != nil {
		t.Fatal(err)
	}
	k, err := publisher.NewKafka(n.brokers, publisher.Config{
		Pin: box.Pin, Logger: quiet, Observer: m.Publisher(), Dial: n.dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	cfg.Schema, cfg.Logger, cfg.Lease, cfg.DrainTimeout = n.db.Schema, quiet, 3*time.Second, time.Second
	cfg.Observer = m.Observer()
	r, err := relay.New(pool, k, cfg)
	if err != nil {
		t.Fatal(err)
	}
	end := n.runs(r.Run, func(ctx context.Context) error { return m.Run(ctx, r) })
	return func() { end(); ended() }
}

// worker starts one, with an effect.
func (n *night) worker(cfg inbox.Config, effect inbox.Effect) (stop func()) {
	n.t.Helper()
	return n.workerOf("ledger", n.db.Pool, cfg, effect)
}

func (n *night) workerOf(name string, pool *pgxpool.Pool, cfg inbox.Config, effect inbox.Effect) (stop func()) {
	t := n.t
	t.Helper()
	to, ended := n.scraped.process(name + cfg.Program)
	m, err := metrics.NewWorker(to, name)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Schema, cfg.Logger, cfg.Observer = n.db.Schema, quiet, m.Inbox()
	in, err := inbox.New(pool, name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(in.Each(effect), n.brokers, []string{n.topic}, consumer.Config{
		Group: name + "-" + n.topic, Logger: quiet, SessionTimeout: 6 * time.Second, HeartbeatInterval: time.Second,
		DrainTimeout: time.Second, ResumeEvery: time.Second, Observer: m.Consumer(),
	})
	if err != nil {
		t.Fatal(err)
	}
	end := n.runs(in.Run, c.Run, func(ctx context.Context) error { return m.Run(ctx, in, c) })
	return func() { end(); ended() }
}

func applies(context.Context, pgx.Tx, event.Event) error { return nil }

// append has a producer's transaction append events of a key.
func (n *night) append(topic, key string, payloads ...string) {
	n.t.Helper()
	if err := appends(n.t.Context(), n.db.Pool, topic, key, payloads...); err != nil {
		n.t.Fatal(err)
	}
}

func appends(ctx context.Context, db *pgxpool.Pool, topic, key string, payloads ...string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, payload := range payloads {
			e := event.Event{Topic: topic, Key: key, Type: "PaymentAccepted", Payload: []byte(payload)}
			if err := outbox.Append(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

func (n *night) until(sql string, args ...any) {
	n.t.Helper()
	pgtest.AwaitSQL(n.t, n.db, sql, args...)
}

const (
	isPublished = "select not exists (select from outbox_event) and exists (select from outbox_topic)"
	isHeld      = "select exists (select from outbox_held)"
)

func (n *night) client() *kafka.Client {
	transport := &kafka.Transport{Dial: n.dial}
	n.t.Cleanup(transport.CloseIdleConnections)
	return &kafka.Client{Addr: kafka.TCP(n.brokers...), Timeout: 10 * time.Second, Transport: transport}
}

// openOverview opens it in a tab that renews itself as often as it does for people.
func (n *night) openOverview() {
	n.t.Helper()
	s := serve(n.t, ui.Config{Kafka: n.client(), Refresh: 5 * time.Second, Timeout: 15 * time.Second},
		ui.Database{Name: "shop", Pool: n.pool, Schema: n.db.Schema})
	n.tab = s.tab(n.t, "ann", ui.Operate)
	n.onEachPage(`window.setInterval = (renew, ms) => atIntervals(async () => {
		if (!window.held) await (window.renewing = renew());
	}, ms)`)
	n.away(true) // a page may say 503
	n.open("/")
}

// finding is an expression for what names a failure; null: nothing does.
func (f failure) finding() string {
	return `[...document.querySelectorAll("article.finding, .notice.fail")].find(a => {
		const check = a.querySelector("h3")?.lastChild.textContent.trim();
		return check === ` + quote(f.check) + ` && a.innerText.includes(` + quote(f.says) + `);
	})`
}

// patience is how long a failure may take to be named, or to go away: some are ones only after a minute.
const patience = 8 * time.Minute

func (n *night) patiently(what, expression string) (took time.Duration) {
	n.t.Helper()
	began := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for is := false; ; {
		if err := n.evaluate(expression, &is); err == nil && is {
			return time.Since(began)
		}
		if time.Since(began) > patience {
			n.t.Fatalf("%s: not seen:\n%s", what, n.text())
		}
		<-tick.C
	}
}

// sees waits until the overview names the failure, and reads what it says.
func (n *night) sees(f failure) {
	n.t.Helper()
	n.named = n.patiently("named", "!!"+f.finding())
	var found [3]string
	n.js(`(a => [a.querySelector(".found, p").innerText, a.querySelector(".next")?.innerText || "",
		a.querySelector(".command code")?.innerText || ""])(`+f.finding()+`)`, &found)
	n.says = f.check + ": " + found[0]
	n.t.Logf("after %v:\n%s", n.named.Round(time.Second), n.text())
	if f.do != "" {
		if found[1]+found[2] == "" && f.check != thisDatabase { // which says so itself
			n.t.Errorf("%s: the overview does not say what to do", f.name)
		}
	}
}

// mends does so, and waits until the overview says nothing of it any more.
func (n *night) mends(f failure) {
	n.t.Helper()
	began := time.Now()
	f.mend(n)
	n.open("/")
	n.patiently("gone", `!!document.querySelector("details.fine") && !`+f.finding())
	n.gone = time.Since(began)
}

// clicks presses the first link, summary or button whose text begins so. leads: to another page.
func (n *night) presses(text, near string, leads bool) {
	n.t.Helper()
	n.awaits(text+" near "+near, `(async () => {
		window.held = true;
		await window.renewing;
		const e = [...document.querySelectorAll("a, summary, button:not([type=button])")].find(e =>
			e.textContent.trim().startsWith(`+quote(text)+`) && e.checkVisibility() &&
			(e.closest("tr, article, dl, section, main, nav") || document.body).textContent.includes(`+quote(near)+`));
		document.getElementById("next")?.removeAttribute("id");
		if (e) e.id = "next";
		return !!e;
	})()`)
	n.row.mend += map[bool]string{true: "", false: " → "}[n.row.mend == ""] + text
	if leads {
		n.follow("#next")
	} else {
		n.click("#next")
	}
}

// goes follows a link.
func (n *night) goes(text, near string) {
	n.t.Helper()
	n.presses(text, near, true)
}

// verb opens a verb, says why, sends it, and reads what was done.
func (n *night) verb(name, near, send, done string) {
	n.t.Helper()
	n.presses(name, near, false)
	n.fill("details[open] input[name=reason]", "found by the night shift")
	n.presses(send, "", true)
	n.wants(done)
}

var tableAt = regexp.MustCompile(`(?s)(<!-- nightshift -->\n).*(<!-- end -->)`)

// writeTable puts what was seen into the document. What was staged and not seen is not in it; the rows of what this run
// has left out stay.
func writeTable(t *testing.T, document string, staged map[string]*row) {
	old, err := os.ReadFile(document)
	at := tableAt.FindSubmatchIndex(old)
	if err != nil || at == nil {
		t.Fatalf("%s has no place for the table: %v", document, err)
	}
	before := map[string]string{}
	for line := range strings.Lines(string(old[at[3]:at[4]])) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		before[name] = line
	}
	table := "| failure | clicks |\n|---|---|\n"
	cell := strings.NewReplacer("|", `\|`, "\n", " ")
	for _, f := range allFailures() {
		switch r, is := staged[f.name]; {
		case !is:
			table += before[f.name]
		case r != nil:
			t.Logf("%s: named after %.0f s, alerts after %.0f s more (%s), gone after %.0f s", r.name,
				r.named.Seconds(), r.rang.Seconds(), strings.Join(r.fire, ", "), r.gone.Seconds())
			if f.do == "" { // mended by clicks alone
				table += fmt.Sprintf("| %s | %s |\n", r.name, cell.Replace(r.mend))
			}
		}
	}
	written := slices.Concat(old[:at[3]], []byte(table), old[at[4]:])
	if err := os.WriteFile(document, written, 0o644); err != nil {
		t.Fatal(err)
	}
}

func allFailures() []failure {
	return slices.Concat(failures, failuresOfWorkers, failuresOfRelays, failuresOfPostgres)
}
