package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/client"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// TestRollingDeploys: random histories of one intent with two releases of a service that have different fingerprints of
// the command, behind a proxy that answers itself, loses answers, and sends requests twice or late. A verdict must be
// true at once and after the late requests.
func TestRollingDeploys(t *testing.T) {
	t.Parallel()
	verdicts := map[client.Verdict]int{}
	for seed := range uint64(2000) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			got := w.call()
			for _, late := range w.late {
				late()
			}
			verdicts[got]++
			if got == client.Done && w.effects != 1 || got == client.NotDone && w.effects != 0 {
				t.Errorf("seed %d: the verdict is %q, and it was done %d times:\n%s", seed, got, w.effects,
					strings.Join(w.history, "\n"))
			}
		})
		if t.Failed() {
			return
		}
	}
	for _, v := range []client.Verdict{client.Done, client.NotDone, client.Unknown} {
		if verdicts[v] < 100 {
			t.Errorf("%q in %d of the histories: want at least 100", v, verdicts[v])
		}
	}
}

// world is a service, the network, and the state of one intent.
type world struct {
	t        *testing.T
	rand     *rand.Rand
	now      time.Time
	store    *memstore.Store
	guard    *guard.Guard
	releases [2]idempotency.Fingerprinter
	declines bool // the business refuses every attempt
	effects  int
	late     []func()
	history  []string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_800_000_000, 0)} //nolint:gosec // a test's
	w.store = memstore.New(memstore.Config{Now: func() time.Time { return w.now }})
	var err error
	if w.guard, err = guard.New(w.store, guard.Config{
		RecoverAfter: -1,
		Keep:         idempotency.Retention{Tombstone: -1},
	}); err != nil {
		t.Fatal(err)
	}
	w.releases[0].Version, w.releases[1].Version = 1, 2
	if w.rand.IntN(2) == 0 {
		w.releases[1].Older = []idempotency.Fingerprinter{w.releases[0]}
	}
	w.declines = w.rand.IntN(3) == 0
	return w
}

func (w *world) logf(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// call makes the caller's calls: it repeats an Unknown one, and may crash.
func (w *world) call() client.Verdict {
	c := &http.Client{Transport: client.New(client.Config{
		Base: w, MaxAttempts: 1 + w.rand.IntN(4),
		MinDelay: time.Millisecond,
	})}
	ctx, key := w.t.Context(), ""
	for calls := 0; ; calls++ {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://payments.test/payments",
			strings.NewReader(`{"amount":1}`))
		if err != nil {
			w.t.Fatal(err)
		}
		if key != "" {
			r.Header.Set(client.HeaderKey, key)
		}
		res, err := c.Do(r)
		got := client.Outcome(res, err)
		w.logf("the caller: %v", got)
		var e *client.Error
		if errors.As(err, &e) {
			key = e.Key
		} else {
			key = client.Key(res)
		}
		if calls == 2 || got != client.Unknown && w.rand.IntN(4) > 0 {
			return got
		}
		ctx = client.Repeat(w.t.Context())
	}
}

// RoundTrip is the network.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if w.rand.IntN(6) == 0 {
		w.logf("a day later")
		w.now = w.now.Add(25 * time.Hour)
	}
	w.recover()
	deliver := func() *http.Response { return w.serve(r.Header.Get(client.HeaderKey), body) }
	switch w.rand.IntN(8) {
	case 0:
		w.logf("the connection was refused")
		return nil, refused
	case 1:
		w.logf("the request is late")
		w.late = append(w.late, func() { deliver() })
		return nil, reset
	case 2:
		deliver()
		w.logf("the answer was lost")
		return nil, reset
	case 3:
		statuses := []int{400, 401, 403, 404, 408, 409, 410, 412, 413, 422, 424, 429, 451, 500, 502, 503, 504}
		res := httptest.NewRecorder()
		res.Code = statuses[w.rand.IntN(len(statuses))]
		w.logf("the proxy: %d", res.Code)
		return res.Result(), nil
	case 4:
		deliver()
		w.logf("the proxy got no answer, and sent it again")
		return deliver(), nil
	}
	return deliver(), nil
}

// serve answers as one of the releases.
func (w *world) serve(key string, body []byte) *http.Response {
	release := w.rand.IntN(2)
	rec := httptest.NewRecorder()
	req, err := w.releases[release].Request(idempotency.Key{Operation: "payment.create", Value: key}, string(body))
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := w.guard.Do(context.Background(), req, w.work)
	httpedge.Edge{Logger: slog.New(slog.DiscardHandler)}.Write(rec, res, err)
	w.logf("release %d: %d %s %s", release+1, rec.Code, rec.Header().Get(httpedge.HeaderReplayed),
		bytes.TrimSpace(rec.Body.Bytes()))
	return rec.Result()
}

func (w *world) work(context.Context) (idempotency.Result, error) {
	switch w.rand.IntN(6) {
	case 0:
		return idempotency.Result{}, outcome.Retryable(errors.New("busy"))
	case 1:
		return idempotency.Result{}, &httpedge.Problem{Status: 409, Code: "NOT_NOW"}
	case 2:
		if !w.declines {
			w.effects++
		}
		return idempotency.Result{}, outcome.Unknown(errors.New("the answer to COMMIT was lost"))
	}
	if w.declines {
		res, _ := httpedge.JSON(402, "declined")
		return res, outcome.Terminal("card_declined", errors.New("no"))
	}
	w.effects++
	return httpedge.JSON(201, "paid")
}

// recover sometimes resolves an unknown outcome.
func (w *world) recover() {
	if w.rand.IntN(2) == 0 {
		return
	}
	claimed, err := w.store.Recover(context.Background(), store.RecoverOptions{
		Limit: 1, Lease: time.Minute,
		Token: "recovery",
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range claimed {
		if w.effects > 0 {
			err = w.store.Finish(context.Background(), c.Lease, idempotency.Result{Code: 201},
				idempotency.Retention{Tombstone: -1})
		} else {
			err = w.store.Release(context.Background(), c.Lease)
		}
		w.logf("recovery: done %d times (%v)", w.effects, err)
		if err != nil {
			w.t.Fatal(err)
		}
	}
}
