package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/loopback"
	"github.com/effectonce/effectonce/internal/pgconf"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/ui"
)

//go:embed page
var page embed.FS

// operate is where the operators' pages are, beside the demo's own page.
const operate = "/operate"

// play is the page that draws the way of each payment, counts, and has buttons that inject faults.
type play struct {
	url       string
	s         *stack
	children  *children
	customers *customers
	way       *way
	display   *display
	close     func()

	mu    sync.Mutex
	busy  string // what is being done; empty: nothing
	lines []string
}

const mostLines = 8

// openPlay serves the page. Its buttons work after free.
func openPlay(ctx context.Context, f flags, s *stack, children *children, customers *customers, d *display) (
	*play, error,
) {
	db, err := s.pagesPool(ctx)
	if err != nil {
		return nil, err
	}
	p := &play{s: s, children: children, customers: customers, display: d, busy: "the payments of the demo"}
	if p.way, err = newWay(s, db); err != nil {
		db.Close()
		return nil, err
	}
	transport := &kafka.Transport{}
	pages, err := ui.New([]ui.Database{{Name: "demo", Pool: db, Schema: s.settings.Schema}}, ui.Config{
		Authorize: ui.Localhost("demo"), Prefix: operate,
		Kafka: &kafka.Client{
			Addr: kafka.TCP(s.settings.Brokers...), Timeout: 10 * time.Second, Transport: transport,
		},
	})
	var l net.Listener
	if err == nil {
		if l, err = net.Listen("tcp", f.Listen); err != nil {
			l, err = net.Listen("tcp", "127.0.0.1:0")
		}
	}
	if err != nil {
		p.way.close()
		db.Close()
		return nil, err
	}
	p.url = "http://" + l.Addr().String() + "/"
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	serving.Go(func() { _ = pages.Run(ctx) })
	serving.Go(func() { p.way.run(ctx) })
	serving.Go(func() { _ = process.Serve(ctx, l, p.routes(ctx, pages)) })
	p.close = func() {
		cancel()
		serving.Wait()
		p.way.close()
		transport.CloseIdleConnections()
		db.Close()
	}
	return p, nil
}

func (s *stack) pagesPool(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgconf.PoolConfig("--database-url", s.settings.DatabaseURL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 4
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (p *play) routes(ctx context.Context, pages http.Handler) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // it is part of the program
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.HandleFunc("GET /state", p.state)
	mux.HandleFunc("POST /do/{what}", func(w http.ResponseWriter, r *http.Request) { p.do(ctx, w, r) })
	mine := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.URL.Path) > len(operate) && r.URL.Path[:len(operate)+1] == operate+"/" {
			pages.ServeHTTP(w, r)
			return
		}
		if !loopback.Request(r) {
			http.Error(w, "this page answers this machine only", http.StatusForbidden)
			return
		}
		mine.ServeHTTP(w, r)
	})
}

// free lets the buttons work.
func (p *play) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = ""
}

// say adds a line to those of the page.
func (p *play) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.display.printf("%s", text)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, time.Now().Format("15:04:05")+"  "+text)
	p.lines = p.lines[max(len(p.lines)-mostLines, 0):]
}

// state answers with what the page draws.
func (p *play) state(w http.ResponseWriter, r *http.Request) {
	now, err := p.way.look(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	p.mu.Lock()
	now.Busy, now.Lines = p.busy, p.lines
	p.mu.Unlock()
	now.Parts = []part{
		{"relay-1", p.children.running("relay-1")},
		{"relay-2", p.children.running("relay-2")},
		{"ledger", p.children.running("ledger")},
		{"email", p.children.running("email")},
	}
	now.KafkaAway, now.MayTakeKafka = p.way.kafkaAway.Load(), p.s.kafka != nil
	now.Frozen = p.s.settings.marked(markFrozen)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(now)
}

// line is the count for a terminal; "" while it is not known.
func (p *play) line(ctx context.Context) string {
	c, err := p.way.counts(ctx)
	if err != nil {
		return ""
	}
	line := fmt.Sprintf("payments %d   records in Kafka %d   ledger pairs %d   mails %d", c.Payments, c.Records,
		c.Pairs, c.Mails)
	if c.Parked > 0 {
		line += fmt.Sprintf("   parked %d", c.Parked)
	}
	return line
}

// do begins what a button says. One thing is done at a time.
func (p *play) do(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	action, ok := actions[r.PathValue("what")]
	if !ok {
		http.Error(w, "there is no such button", http.StatusNotFound)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch what := r.PathValue("what"); {
	case p.busy != "":
		http.Error(w, "one thing at a time: "+p.busy, http.StatusConflict)
		return
	case p.way.kafkaAway.Load() && wantsKafka[what]:
		http.Error(w, "Kafka is away: bring it back first", http.StatusConflict)
		return
	}
	p.busy = r.PathValue("what")
	go func() {
		defer p.free()
		if err := action(p, ctx); err != nil && ctx.Err() == nil {
			p.say("it failed: %v", err)
		}
	}()
	w.WriteHeader(http.StatusAccepted)
}

// actions are the buttons.
var actions = map[string]func(p *play, ctx context.Context) error{
	"pay":       func(p *play, ctx context.Context) error { return p.pay(ctx, "alice") },
	"pay-twice": (*play).payTwice, "deliver-again": (*play).deliverAgain, "kill-relays": (*play).killRelays,
	"kill-ledger": (*play).killLedger, "kafka": (*play).takeKafka, "freeze": (*play).freeze, "thaw": (*play).thaw,
}

// wantsKafka are the buttons that end when a record has come from Kafka.
var wantsKafka = map[string]bool{"deliver-again": true, "kill-ledger": true}

// pay makes a payment from an account.
func (p *play) pay(ctx context.Context, account string) error {
	_, err := p.request(ctx, uuid.NewString(), account)
	if err == nil {
		p.say("paid from %s: the row and its event committed together", account)
	}
	return err
}

func (p *play) request(ctx context.Context, key, account string) (replayed bool, err error) {
	body, err := json.Marshal(map[string]any{"account_id": account, "amount": 4990, "currency": "EUR"})
	if err != nil {
		return false, err
	}
	_, replayed, err = p.customers.post(ctx, p.customers.url, key, body)
	return replayed, err
}

func (p *play) payTwice(ctx context.Context) error {
	key := uuid.NewString()
	for range 2 {
		replayed, err := p.request(ctx, key, "bob")
		if err != nil {
			return err
		}
		if replayed {
			p.say("the second request with the key got the first answer: one payment")
		}
	}
	return nil
}

func (p *play) deliverAgain(ctx context.Context) error {
	n, err := p.way.again(ctx, p.s.topic)
	if err == nil {
		p.say("Kafka has the last %d records once more: the inboxes know their ids", n)
	}
	return err
}

// killRelays leaves payments without a relay for a moment.
func (p *play) killRelays(ctx context.Context) error {
	p.children.kill("relay-1")
	p.children.kill("relay-2")
	p.say("both relays are dead (kill -9): what is paid now waits in the outbox")
	var err error
	for range 3 {
		err = errors.Join(err, p.pay(ctx, "carol"))
	}
	if err := wait(ctx, 3*time.Second); err != nil {
		return err
	}
	p.say("the relays start again: they take what the dead ones had claimed when its lease has run out")
	return errors.Join(err, p.children.start("relay-1", roleRelay), p.children.start("relay-2", roleRelay))
}

// killLedger kills the ledger's worker between an effect and its COMMIT.
func (p *play) killLedger(ctx context.Context) error {
	mark := filepath.Join(p.s.dir, markKill)
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		return err
	}
	ended := p.children.expect("ledger", true)
	err := p.pay(ctx, "dave")
	if err == nil {
		select {
		case <-ended:
			if os.Remove(mark) == nil {
				err = errors.New("the ledger was killed from outside, before it had the payment")
			}
		case <-time.After(stuckAfter):
			err = errors.New("the ledger has not got the payment")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		_ = os.Remove(mark)
		p.children.expect("ledger", false)
		return err
	}
	p.say("the ledger wrote its entries and died before COMMIT (kill -9): Postgres takes them back")
	if err := wait(ctx, 2*time.Second); err != nil {
		return err
	}
	p.say("the ledger starts again, and gets the record again")
	return p.children.start("ledger", roleLedger)
}

// takeKafka takes Kafka away, or brings it back.
func (p *play) takeKafka(ctx context.Context) error {
	if p.s.kafka == nil {
		return errors.New("this Kafka is not the demo's own: stop and start it yourself")
	}
	if p.way.kafkaAway.Load() {
		p.s.kafka.Away(false)
		p.way.kafkaAway.Store(false)
		p.say("Kafka is back: relays and workers go on by themselves")
		return nil
	}
	p.s.kafka.Away(true)
	p.way.kafkaAway.Store(true)
	p.say("Kafka is away: payments are accepted all the same")
	return p.pay(ctx, "erin")
}

// freeze makes an event that the ledger cannot apply.
func (p *play) freeze(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(p.s.dir, markFrozen), nil, 0o644); err != nil {
		return err
	}
	if err := p.pay(ctx, frozen); err != nil {
		return err
	}
	p.say("the ledger refuses it: it is parked, with what comes later for its key; all others go on")
	return nil
}

// thaw removes the cause, and releases what was parked.
func (p *play) thaw(ctx context.Context) error {
	if err := os.Remove(filepath.Join(p.s.dir, markFrozen)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	o, err := inboxoperator.New(p.s.db, p.s.settings.Schema, ledger.Name, "demo")
	if err != nil {
		return err
	}
	keys, err := o.BlockedKeys(ctx, admin.BlockedFilter{Limit: 10})
	if err != nil {
		return err
	}
	for _, k := range keys {
		_, err := o.ReleaseKey(ctx, k.Tenant, k.Topic, k.Key, admin.Seen{}, "the account is open again")
		if err != nil {
			return err
		}
		p.say("the account is open again, and its key is released: the ledger books it now")
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
