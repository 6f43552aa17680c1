package httpedge_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/memstore"
)

// TestEveryWayIn sends each request twice, as it stands on the wire: the effect, which counts itself, happens once for
// a request that may have it and never for another; what is refused is a problem that says why.
func TestEveryWayIn(t *testing.T) {
	t.Parallel()
	var effects atomic.Int64
	store := memstore.New(memstore.Config{})
	g, err := guard.New(store, guard.Config{Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	edge := httpedge.Edge{Logger: quiet}
	type order struct {
		Item string `json:"item"`
	}
	mux := http.NewServeMux()
	mux.Handle("POST /guarded", httpedge.Middleware(g, tenant, httpedge.Config{Edge: edge, MaxRequest: 1000})(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, effects.Add(1))
		})))
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		var o order
		value, err := httpedge.Key(r)
		if err == nil {
			err = httpedge.Decode(w, r, 1000, &o)
		}
		var res idempotency.Result
		if err == nil {
			req, wrong := idempotency.NewRequest(idempotency.Key{Tenant: "a", Operation: "order", Value: value}, o)
			if err = wrong; err == nil {
				res, err = g.Do(r.Context(), req, func(context.Context) (idempotency.Result, error) {
					return httpedge.JSON(http.StatusCreated, effects.Add(1))
				})
			}
		}
		edge.Write(w, res, err)
	})
	mux.Handle("GET /status/{key}", edge.StatusHandler(store.Get, func(r *http.Request) (idempotency.Key, error) {
		name, err := tenant(r)
		return idempotency.Key{Tenant: name, Operation: "POST /guarded", Value: r.PathValue("key")}, err
	}))

	type verdict int
	const (
		either verdict = iota // nothing is claimed but that the effect does not happen twice
		once
		never
	)
	type way struct {
		name, method, query, lines, body string // @KEY@ stands for a key of the cell's own
		add                              int    // to the body's length
		guarded, orders                  verdict
	}
	const key, usual = "Idempotency-Key: @KEY@", `{"item": "x"}`
	ways := []way{
		{name: "usual", guarded: once, orders: once},
		{name: "no key", lines: "A: b", guarded: never, orders: never},
		{name: "an empty key", lines: "Idempotency-Key:", guarded: never, orders: never},
		{name: "the key twice", lines: key + "\r\n" + key, guarded: never, orders: never},
		{name: "two keys", lines: key + "\r\nidempotency-key: other", guarded: never, orders: never},
		{name: "an empty one and a key", lines: "Idempotency-Key:\r\n" + key, guarded: never, orders: never},
		{name: "small letters", lines: strings.ToLower(key[:15]) + key[15:], guarded: once, orders: once},
		{name: "capitals", lines: strings.ToUpper(key), guarded: once, orders: once},
		{name: "quoted", lines: `Idempotency-Key: "@KEY@"`, guarded: once, orders: once},
		{name: "not closed", lines: `Idempotency-Key: "@KEY@`, guarded: never, orders: never},
		{name: "a parameter", lines: `Idempotency-Key: "@KEY@";a=1`, guarded: never, orders: never},
		{name: "too long", lines: key + strings.Repeat("k", 256), guarded: never, orders: never},
		{name: "not ASCII", lines: key + "ü", guarded: never, orders: never},
		{name: "another header", lines: "X-" + key, guarded: never, orders: never},
		{name: "markup", lines: "Idempotency-Key: <@KEY@>", guarded: once, orders: once},
		{name: "a body that is cut", add: 1, guarded: never, orders: never},
		{name: "too large", body: `{"item": "` + strings.Repeat("x", 1000) + `"}`, guarded: never, orders: never},
		{name: "no JSON", body: `{"item`, guarded: once, orders: never},
		{name: "a member twice", body: `{"item": "x", "item": "y"}`, guarded: either, orders: never},
		{name: "another case", body: `{"Item": "x"}`, guarded: either, orders: never},
		{name: "unknown member", body: `{"item": "x", "<b>": 1}`, guarded: once, orders: never},
		{name: "two values", body: `{"item": "x"}{"item": "y"}`, guarded: either, orders: never},
		{name: "another type", body: `{"item": 7}`, guarded: once, orders: never},
		{name: "query", query: "?a=1&a=2&unknown=%zz", guarded: once, orders: once},
		{name: "a method's override", lines: key + "\r\nX-HTTP-Method-Override: GET", guarded: once, orders: once},
	}
	for _, name := range []string{
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-User", "X-Real-IP", "Via", "Origin", "Referer",
		"Cookie", "Sec-Fetch-Site", "Accept-Encoding", "Expect", "Content-Type", "TE",
	} {
		for _, lines := range []string{name + ": b", name + ": b\r\n" + name + ": c", name + ":"} {
			ways = append(ways, way{name: lines, lines: key + "\r\n" + lines, guarded: once, orders: once})
		}
	}
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect,
		http.MethodOptions, http.MethodTrace, "MOVE", "post",
	} {
		ways = append(ways, way{name: method, method: method, guarded: never, orders: never})
	}
	cells := 0
	for i, w := range ways {
		for path, want := range map[string]verdict{
			"/guarded": w.guarded, "/orders": w.orders, "/guarded/": never, "//orders": never, "/x/../guarded": never,
			"/status/@KEY@": never, "/status/%2f": never,
		} {
			own := fmt.Sprintf("k%d", i)
			method, lines, body := "POST", w.lines, w.body
			if w.method != "" {
				method = w.method
			}
			if lines == "" {
				lines = key
			}
			if body == "" {
				body = usual
			}
			lines += fmt.Sprintf("\r\nHost: h\r\nX-Tenant: a\r\nContent-Length: %d", len(body)+w.add)
			text := strings.ReplaceAll(method+" "+path+w.query+" HTTP/1.1\r\n"+lines+"\r\n\r\n"+body, "@KEY@", own)
			before := effects.Load()
			var answers [2]*httptest.ResponseRecorder
			for n := range answers {
				cells++
				answers[n] = httptest.NewRecorder()
				r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
				if err != nil {
					http.Error(answers[n], err.Error(), http.StatusBadRequest)
					continue
				}
				mux.ServeHTTP(answers[n], r)
			}
			a, b := answers[0], answers[1]
			cell := fmt.Sprintf("%s %s, %s: %d %s, then %d %s", method, path, w.name, a.Code, a.Body, b.Code, b.Body)
			happened := effects.Load() - before
			if happened > 1 || want == never && happened > 0 || want == once && happened == 0 {
				t.Errorf("%s: the effect happened %d times", cell, happened)
			}
			if happened == 1 && (a.Code != b.Code || a.Body.String() != b.Body.String() ||
				b.Header().Get(httpedge.HeaderReplayed) != "true" || a.Header().Get(httpedge.HeaderReplayed) != "") {
				t.Errorf("%s: the second is no replay", cell)
			}
			var p httpedge.Problem
			mute := a.Header().Get("Content-Type") == "application/problem+json" &&
				(json.Unmarshal(a.Body.Bytes(), &p) != nil || p.Detail == "" || strings.Contains(p.Detail, own))
			if mute || a.Code >= 500 || want == never && a.Code < 300 && !strings.HasPrefix(path, "/status") {
				t.Errorf("%s: this says nothing", cell)
			}
		}
	}
	if cells < 1000 || effects.Load() < 50 {
		t.Errorf("%d cells, %d effects", cells, effects.Load())
	}
	t.Logf("%d cells, %d effects", cells, effects.Load())
}
