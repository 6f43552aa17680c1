package httpedge_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/idempotency/store"
)

func sealer(t *testing.T, current string, ids ...string) *httpedge.Sealer {
	t.Helper()
	keys := map[string][]byte{}
	for _, id := range ids {
		keys[id] = bytes.Repeat([]byte(id), 32)
	}
	s, err := httpedge.NewSealer(current, keys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealer(t *testing.T) {
	t.Parallel()
	k := idempotency.Key{Tenant: "t", Operation: "o", Value: "v"}
	res := idempotency.Result{
		Code: 201, Header: map[string][]string{"Location": {"/secret"}},
		Body: []byte("secret body"), Resource: "p1", Schema: 2,
	}
	old := sealer(t, "a", "a")
	stored, err := old.Seal(k, res)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(stored.Body, []byte("secret")) || stored.Header["Location"] != nil || stored.Code != 201 ||
		stored.Resource != "p1" {
		t.Errorf("stored %+v", stored)
	}
	if again, _ := old.Seal(k, res); bytes.Equal(again.Body, stored.Body) {
		t.Error("two seals have one nonce")
	}
	// Rotated: the old key still opens, the new one seals.
	both := sealer(t, "b", "a", "b")
	if got, err := both.Open(k, stored); err != nil || !reflect.DeepEqual(got, res) {
		t.Errorf("opened %+v, %v", got, err)
	}
	fresh, _ := both.Seal(k, res)
	for name, c := range map[string]struct {
		s   *httpedge.Sealer
		k   idempotency.Key
		res idempotency.Result
	}{
		"a key that is not there":       {old, k, fresh},
		"another tenant's record":       {both, idempotency.Key{Tenant: "x", Operation: "o", Value: "v"}, stored},
		"the scope's parts moved":       {both, idempotency.Key{Tenant: "to", Operation: "v"}, stored},
		"another operation's record":    {both, idempotency.Key{Tenant: "t", Operation: "p", Value: "v"}, stored},
		"a changed byte":                {both, k, changed(stored)},
		"a body that is much too short": {both, k, idempotency.Result{Header: stored.Header, Body: []byte("x")}},
	} {
		if got, err := c.s.Open(c.k, c.res); !errors.Is(err, httpedge.ErrSealed) ||
			bytes.Contains(got.Body, []byte("secret")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What was stored before there was a sealer, and what has no body any more.
	for _, plain := range []idempotency.Result{res, {Code: 201}} {
		if got, err := both.Open(k, plain); err != nil || !reflect.DeepEqual(got, plain) {
			t.Errorf("%+v: %+v, %v", plain, got, err)
		}
	}
	if _, err := httpedge.NewSealer("a", map[string][]byte{"a": []byte("short")}); err == nil {
		t.Error("a key of 5 bytes is accepted")
	}
	if _, err := httpedge.NewSealer("b", map[string][]byte{"a": bytes.Repeat([]byte("a"), 32)}); err == nil {
		t.Error("a current key that is not there is accepted")
	}
}

func changed(res idempotency.Result) idempotency.Result {
	res.Body = bytes.Clone(res.Body)
	res.Body[len(res.Body)-1] ^= 1
	return res
}

func TestSealer_StoreHasOnlyCiphertext(t *testing.T) {
	t.Parallel()
	inner := memstore.New(memstore.Config{})
	s := sealer(t, "a", "a").Store(inner)
	req := idempotency.Request{Key: idempotency.Key{Operation: "o", Value: "v"}}
	c, err := s.Claim(t.Context(), req, store.ClaimOptions{Token: "t", Lease: time.Minute})
	if err != nil || !c.Won {
		t.Fatal(c, err)
	}
	if err := s.Finish(t.Context(), c.Lease, idempotency.Result{Code: 200, Body: []byte("secret")},
		idempotency.Retention{}); err != nil {
		t.Fatal(err)
	}
	if rec, _, _ := inner.Get(t.Context(), req.Key); bytes.Contains(rec.Result.Body, []byte("secret")) ||
		rec.Result.Body == nil {
		t.Errorf("stored %q", rec.Result.Body)
	}
	if rec, _, err := s.Get(t.Context(), req.Key); err != nil || string(rec.Result.Body) != "secret" {
		t.Errorf("got %q, %v", rec.Result.Body, err)
	}
	c, err = s.Claim(t.Context(), req, store.ClaimOptions{Token: "u", Lease: time.Minute})
	if err != nil || c.Won || string(c.Record.Result.Body) != "secret" || c.Record.Result.Header != nil {
		t.Errorf("claimed %+v, %v", c, err)
	}
}

// TestSealer_InputAndStepsAreSealed: the next owner gets them opened.
func TestSealer_InputAndStepsAreSealed(t *testing.T) {
	t.Parallel()
	inner := memstore.New(memstore.Config{})
	s := sealer(t, "a", "a").Recovering(inner)
	req := idempotency.Request{Key: idempotency.Key{Operation: "o", Value: "v"}, Input: []byte("secret input")}
	step := store.Step{Name: "charge", State: store.StepDone, Key: "k", Data: []byte("secret data")}
	c, err := s.Claim(t.Context(), req, store.ClaimOptions{Token: "t", Lease: time.Minute})
	if err != nil || string(c.Record.Input) != "secret input" {
		t.Fatalf("%+v, %v", c, err)
	}
	p := store.Progress{Stage: idempotency.ProviderConfirmed, Steps: []store.Step{step}}
	if err := errors.Join(s.Save(t.Context(), c.Lease, p), s.MarkUnknown(t.Context(), c.Lease, "a secret answer",
		0)); err != nil {
		t.Fatal(err)
	}
	if string(p.Steps[0].Data) != "secret data" {
		t.Error("the caller's steps were changed")
	}
	kept, _, _ := inner.Get(t.Context(), req.Key)
	if strings.Contains(kept.Reason, "secret") || kept.Reason == "" {
		t.Errorf("stored the reason %q", kept.Reason)
	}
	if bytes.Contains(kept.Input, []byte("secret")) || bytes.Contains(kept.Progress.Steps[0].Data, []byte("secret")) {
		t.Errorf("stored %q and %q", kept.Input, kept.Progress.Steps[0].Data)
	}
	other := sealer(t, "b", "b").Recovering(inner)
	opt := store.RecoverOptions{Limit: 1, Lease: time.Nanosecond, Token: "r"}
	if taken, err := other.Recover(t.Context(), opt); len(taken) != 0 || !errors.Is(err, httpedge.ErrSealed) {
		t.Errorf("with another key: %+v, %v", taken, err)
	}
	opt.Lease = time.Minute
	taken, err := s.Recover(t.Context(), opt)
	if err != nil || len(taken) != 1 || string(taken[0].Record.Input) != "secret input" ||
		taken[0].Record.Reason != "a secret answer" ||
		string(taken[0].Record.Progress.Steps[0].Data) != "secret data" {
		t.Errorf("taken %+v, %v", taken, err)
	}
	rec, _, err := s.Get(t.Context(), req.Key)
	if err != nil || string(rec.Input) != "secret input" || string(rec.Progress.Steps[0].Data) != "secret data" {
		t.Errorf("got %+v, %v", rec, err)
	}
	for _, stuck := range []bool{false, true} {
		err := s.Postpone(t.Context(), taken[0].Lease, "another secret", 0, stuck)
		kept, _, _ := inner.Get(t.Context(), req.Key)
		rec, _, _ := s.Get(t.Context(), req.Key)
		if err != nil || strings.Contains(kept.Reason, "secret") || rec.Reason != "another secret" {
			t.Errorf("postponed: stored %q, got %q, %v", kept.Reason, rec.Reason, err)
		}
	}
}

// TestSealer_MissingKey: the work is done, and this process cannot open its answer. The caller gets an unknown outcome,
// and the log has the cause.
func TestSealer_MissingKey(t *testing.T) {
	t.Parallel()
	inner, req, log := memstore.New(memstore.Config{}),
		idempotency.Request{Key: idempotency.Key{Operation: "o", Value: "v"}}, &bytes.Buffer{}
	for _, key := range []string{"a", "b"} {
		guard, err := guard.New(sealer(t, key, key).Store(inner), guard.Config{})
		if err != nil {
			t.Fatal(err)
		}
		res, err := guard.Do(t.Context(), req, func(context.Context) (idempotency.Result, error) {
			return idempotency.Result{Code: 201, Body: []byte("done by " + key)}, nil
		})
		w := httptest.NewRecorder()
		httpedge.Edge{Logger: slog.New(slog.NewTextHandler(log, nil))}.Write(w, res, err)
		if key == "a" {
			if err != nil || w.Code != 201 {
				t.Fatalf("%d, %v", w.Code, err)
			}
			continue
		}
		if !errors.Is(err, httpedge.ErrSealed) || w.Code != 503 ||
			!strings.Contains(w.Body.String(), "IDEMPOTENCY_OUTCOME_UNKNOWN") ||
			!strings.Contains(log.String(), "a sealed result cannot be opened") {
			t.Errorf("%v: %d %s, logged %q", err, w.Code, w.Body, log)
		}
	}
}

// TestSealer_RecoveredResultIsSealed: a recovery worker seals results, too.
func TestSealer_RecoveredResultIsSealed(t *testing.T) {
	t.Parallel()
	inner := memstore.New(memstore.Config{})
	s := sealer(t, "a", "a").Recovering(inner)
	req := idempotency.Request{Key: idempotency.Key{Operation: "o", Value: "v"}}
	c, err := s.Claim(t.Context(), req, store.ClaimOptions{Token: "t", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.MarkUnknown(t.Context(), c.Lease, "no answer", 0); err != nil {
		t.Fatal(err)
	}
	taken, err := s.Recover(t.Context(), store.RecoverOptions{Limit: 1, Lease: time.Minute, Token: "r"})
	if err != nil || len(taken) != 1 {
		t.Fatal(taken, err)
	}
	if err := s.Finish(t.Context(), taken[0].Lease, idempotency.Result{Code: 200, Body: []byte("secret")},
		idempotency.Retention{}); err != nil {
		t.Fatal(err)
	}
	if rec, _, _ := inner.Get(t.Context(), req.Key); bytes.Contains(rec.Result.Body, []byte("secret")) ||
		rec.Result.Body == nil {
		t.Errorf("stored %q", rec.Result.Body)
	}
	if rec, _, err := s.Get(t.Context(), req.Key); err != nil || string(rec.Result.Body) != "secret" {
		t.Errorf("got %q, %v", rec.Result.Body, err)
	}
}
