package recovery_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/effectonce/effectonce/idempotency/dynamostore"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/dynamotest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/internal/testenv/redistest"
)

// runOverServer runs histories on a real server, several at a time. set configures each, with a store over an
// unreliable network.
func runOverServer(t *testing.T, p timing, usual uint64, parallel int, set func(t *testing.T, r *randomRun)) {
	t.Helper()
	var all totals
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for seed := range seeds(usual, max(1, usual/3)) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			t.Run(fmt.Sprint(seed), func(t *testing.T) { // for its cleanup
				r := newRandomRun(seed, p)
				set(t, r)
				r.play(t)
				all.add(r)
			})
		})
	}
	wg.Wait()
	all.check(t, 0)
}

// TestRandom_OverPostgres: the histories of TestRandom_HistoriesWithCrashes, with statements that are lost between pgx
// and Postgres.
func TestRandom_OverPostgres(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "idempotency")
	direct, err := pgstore.New(db.Pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	runOverServer(t, server, 8, 4, func(t *testing.T, r *randomRun) {
		proxy := pgtest.NewProxy(t, db.URL)
		config, err := pgxpool.ParseConfig(proxy.URL())
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns = 8
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		r.store = direct
		r.open = func() store.Recoverable {
			s, err := pgstore.New(pool, pgstore.Config{Wait: 100 * time.Millisecond})
			if err != nil {
				panic(err)
			}
			return s
		}
		ctx, cancel := context.WithTimeout(t.Context(), r.real(r.duration))
		t.Cleanup(cancel)
		words := []string{
			"claim", "claim", "take over", "save", "save", "save", "finish", "release", "mark unknown", "extend",
			"recover", "postpone",
		}
		for i, verb := range words {
			words[i] = "-- pgstore: " + verb + "\n"
		}
		for range 2 {
			r.lateCalls.Go(func() { r.injectFaults(ctx, proxy, words) })
		}
	})
}

// injectFaults makes the network fail at one statement after the other, found by their first words.
func (r *randomRun) injectFaults(ctx context.Context, proxy *pgtest.Proxy, words []string) {
	for ctx.Err() == nil {
		word := words[r.roll(len(words))]
		action := []pgtest.Action{
			pgtest.CutBefore, pgtest.DropReply, pgtest.CutAfter, pgtest.Late,
			pgtest.Late,
		}[r.roll(5)]
		trap := proxy.On(func(sql string) bool { return strings.HasPrefix(sql, word) }, r.roll(3), action)
		select {
		case <-trap.Fired():
		case <-time.After(r.real(10 * time.Second)):
			if proxy.Withdraw(trap) {
				continue
			}
			<-trap.Fired()
		}
		r.mu.Lock()
		r.lost++
		r.mu.Unlock()
		if action == pgtest.Late {
			r.mu.Lock()
			r.late++
			r.mu.Unlock()
			r.runLate(trap.Release)
		}
	}
}

// TestRandom_OverRedis: likewise, with scripts that are lost between go-redis and Redis.
func TestRandom_OverRedis(t *testing.T) {
	t.Parallel()
	prefix := redistest.Prefix()
	runOverServer(t, server, 12, 12, func(t *testing.T, r *randomRun) {
		client := redisClient(t)
		r.store = redisStore(client, prefix)
		failing := redisAt(t, client.Options().Addr, nil)
		failing.AddHook(redisNetwork{r})
		r.open = func() store.Recoverable { return redisStore(failing, prefix) }
	})
}

// redisNetwork is a hook that makes a client's scripts fail.
type redisNetwork struct{ r *randomRun }

func (h redisNetwork) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h redisNetwork) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h redisNetwork) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		switch h.r.drawFault() {
		case delivered:
			return next(ctx, cmd)
		case replyLost:
			_ = next(ctx, redis.NewCmd(ctx, cmd.Args()...))
		case executedLate:
			ctx := context.WithoutCancel(ctx)
			lateCmd := redis.NewCmd(ctx, slices.Clone(cmd.Args())...)
			h.r.runLate(func() { _ = next(ctx, lateCmd) })
		}
		cmd.SetErr(errUnavailable)
		return errUnavailable
	}
}

// TestRandom_OverDynamoDB: likewise, with lost requests.
func TestRandom_OverDynamoDB(t *testing.T) {
	t.Parallel()
	client, table := dynamoAt(t, dynamotest.URL(t), nil), "test-"+rand.Text()
	if err := dynamostore.CreateTable(t.Context(), client, table); err != nil {
		t.Fatal(err)
	}
	runOverServer(t, slow, 2, 2, func(t *testing.T, r *randomRun) {
		r.store = dynamoStore(client, table)
		transport := &http.Transport{MaxIdleConnsPerHost: 100}
		t.Cleanup(transport.CloseIdleConnections)
		failing := dynamoAt(t, dynamotest.URL(t), func(o *dynamodb.Options) {
			o.HTTPClient, o.RetryMaxAttempts = &http.Client{Transport: dynamoNetwork{transport, r}}, 1
		})
		r.open = func() store.Recoverable { return dynamoStore(failing, table) }
	})
}

// dynamoNetwork is a transport that makes a client's writes fail.
type dynamoNetwork struct {
	http.RoundTripper
	r *randomRun
}

// RoundTrip implements http.RoundTripper.
func (n dynamoNetwork) RoundTrip(req *http.Request) (*http.Response, error) {
	if !slices.ContainsFunc([]string{"PutItem", "UpdateItem"},
		func(op string) bool { return strings.HasSuffix(req.Header.Get("X-Amz-Target"), op) }) {
		return n.RoundTripper.RoundTrip(req)
	}
	f := n.r.drawFault()
	if f == delivered {
		return n.RoundTripper.RoundTrip(req)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	again := req.Clone(context.WithoutCancel(req.Context()))
	again.Body = io.NopCloser(bytes.NewReader(body))
	execute := func() {
		if res, err := n.RoundTripper.RoundTrip(again); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	switch f {
	case replyLost:
		execute()
	case executedLate:
		n.r.runLate(execute)
	}
	return nil, errUnavailable
}
