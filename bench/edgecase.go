package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
)

const (
	nameReplayHTTP  = "the edge, replays, clients: 16"
	nameRefusedHTTP = "the edge, another command under a known key, clients: 16"
)

func namePlainHTTP(clients int) string {
	return fmt.Sprintf("a handler over HTTP, clients: %d", clients)
}

func nameEdgeHTTP(clients int) string {
	return fmt.Sprintf("the same with the edge, clients: %d", clients)
}

// order is the request of the edge case.
type order struct {
	Account string `json:"account_id"`
	Amount  int64  `json:"amount"`
	Note    string `json:"note"`
}

// edgeCase measures what idempotency adds to an HTTP handler, clients included: the header, the fingerprint, the key
// and the stored response.
func edgeCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("edge", fmt.Sprintf("Requests per second over HTTP on the loopback interface, with clients and server "+
		"in one process. The handler is that of the idempotency case, and answers %d bytes. With the edge it reads "+
		"the Idempotency-Key, computes the command's fingerprint, and calls InTx. Each row runs for %v", payloadSize,
		o.live.tax))
	if err := s.exec(ctx, queryDropBusiness, queryAccounts, queryPayments, queryOpenAccounts,
		queryKeysByHand); err != nil {
		return err
	}
	defer func() {
		_ = s.exec(context.WithoutCancel(ctx), queryDropBusiness, queryEmptyOutbox, queryEmptyKeys, queryDropKeysByHand)
	}()
	e, err := s.newEdge(ctx)
	if err != nil {
		return err
	}
	defer e.pool.Close()
	h, err := e.overHTTP()
	if err != nil {
		return err
	}
	defer h.close()
	kinds := []requests{
		{namePlainHTTP(1), 1, h.plain},
		{nameEdgeHTTP(1), 1, h.edge},
		{namePlainHTTP(16), 16, h.plain},
		{nameEdgeHTTP(16), 16, h.edge},
		{nameReplayHTTP, 16, h.replay},
		{nameRefusedHTTP, 16, h.refused},
	}
	if err := e.turns(ctx, o, rep, "edge", kinds, h.fill); err != nil {
		return err
	}
	for _, n := range []int{1, 16} {
		rep.atMost("edge", fmt.Sprintf("time with / without the edge, clients: %d", n), 1.3,
			rep.ratios("edge", namePlainHTTP(n), nameEdgeHTTP(n)))
	}
	rep.atLeast("edge", nameReplayHTTP, 5000)
	return nil
}

// overHTTP is the service behind a server, and its clients.
type overHTTP struct {
	e      *edge
	server *http.Server
	client *http.Client
	url    string
	order  []byte
	other  []byte
	log    *slog.Logger // discards the lines about refused keys
}

func (e *edge) overHTTP() (*overHTTP, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &overHTTP{
		e: e, url: "http://" + listener.Addr().String(),
		log:    slog.New(slog.DiscardHandler),
		client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}},
	}
	for amount, to := range map[int64]*[]byte{100: &h.order, 101: &h.other} {
		if *to, err = json.Marshal(order{
			Account: "acc-1", Amount: amount,
			Note: "settled by card, invoice 2026-11",
		}); err != nil {
			return nil, errors.Join(err, listener.Close())
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /plain", h.servePlain)
	mux.HandleFunc("POST /edge", h.serveEdge)
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.server.Serve(listener) }() // ends with close
	return h, nil
}

func (h *overHTTP) close() {
	h.client.CloseIdleConnections()
	_ = h.server.Close()
}

// read reads and validates a request.
func read(w http.ResponseWriter, r *http.Request) (o order, err error) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
	dec.DisallowUnknownFields()
	if err = dec.Decode(&o); err == nil && o.Amount <= 0 {
		err = errors.New("the amount must be positive")
	}
	return o, err
}

func (h *overHTTP) servePlain(w http.ResponseWriter, r *http.Request) {
	if _, err := read(w, r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var res idempotency.Result
	err := pgx.BeginFunc(r.Context(), h.e.pool, func(tx pgx.Tx) (err error) {
		res, err = h.e.handle(r.Context(), tx)
		return err
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(res.Code)
	_, _ = w.Write(res.Body)
}

func (h *overHTTP) serveEdge(w http.ResponseWriter, r *http.Request) {
	res, err := h.once(w, r)
	httpedge.Edge{Logger: h.log}.Write(w, res, err)
}

func (h *overHTTP) once(w http.ResponseWriter, r *http.Request) (idempotency.Result, error) {
	key, err := httpedge.Key(r)
	if err != nil {
		return idempotency.Result{}, err
	}
	o, err := read(w, r)
	if err != nil {
		return idempotency.Result{}, &httpedge.Problem{Code: httpedge.CodeBadRequest, Detail: err.Error()}
	}
	req, err := idempotency.NewRequest(idempotency.Key{Tenant: "bench", Operation: "payment.create", Value: key}, o)
	if err != nil {
		return idempotency.Result{}, err
	}
	return h.e.store.InTx(r.Context(), req, h.e.handle)
}

// post sends an order and checks the status.
func (h *overHTTP) post(ctx context.Context, path, key string, body []byte, want int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(httpedge.HeaderKey, key)
	res, err := h.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != want {
		err = fmt.Errorf("%s answered %s: %.200s", path, res.Status, answer)
	}
	return err
}

func (h *overHTTP) plain(ctx context.Context, _ int) error {
	return h.post(ctx, "/plain", newRequest().Key.Value, h.order, http.StatusCreated)
}

func (h *overHTTP) edge(ctx context.Context, _ int) error {
	return h.post(ctx, "/edge", newRequest().Key.Value, h.order, http.StatusCreated)
}

func knownKey(i int) string { return "known-" + strconv.Itoa(i%replayed) }

func (h *overHTTP) replay(ctx context.Context, i int) error {
	return h.post(ctx, "/edge", knownKey(i), h.order, http.StatusCreated)
}

func (h *overHTTP) refused(ctx context.Context, i int) error {
	return h.post(ctx, "/edge", knownKey(i), h.other, http.StatusUnprocessableEntity)
}

// fill sends the requests that are replayed later.
func (h *overHTTP) fill(ctx context.Context) error {
	var next atomic.Int64
	return inParallel(ctx, 16, replayed, 50, func(ctx context.Context, n int) error {
		for range n {
			if err := h.post(ctx, "/edge", knownKey(int(next.Add(1))-1), h.order, http.StatusCreated); err != nil {
				return err
			}
		}
		return nil
	})
}
