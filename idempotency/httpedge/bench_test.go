package httpedge_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
)

// order is a command as services have them.
type order struct {
	AccountID string `json:"account_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

// discardWriter is an http.ResponseWriter that costs nothing.
type discardWriter struct{ header http.Header }

func (w discardWriter) Header() http.Header { return w.header }

func (w discardWriter) Write(b []byte) (int, error) { return len(b), nil }

func (w discardWriter) WriteHeader(int) {}

// noGuard is a guard that runs the work and remembers nothing.
type noGuard struct{}

func (noGuard) Do(ctx context.Context, _ idempotency.Request, work func(context.Context) (idempotency.Result,
	error),
) (idempotency.Result, error) {
	return work(ctx)
}

const orderBody = `{"account_id":"acc-4711","amount":1999,"currency":"EUR"}`

// BenchmarkHandler: what a request costs at the edge beside its store: the key, the request with its fingerprint, the
// answer.
func BenchmarkHandler(b *testing.B) {
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set(httpedge.HeaderKey, "8e03978e-40d5-43e8-bc93-6894a57f9324")
	edge := httpedge.Edge{Policy: httpedge.Policy(idempotency.Retention{})}
	cmd := order{AccountID: "acc-4711", Amount: 1999, Currency: "EUR"}
	fingerprints := idempotency.Fingerprinter{KeepInput: true}
	res, err := httpedge.JSON(http.StatusCreated, cmd)
	if err != nil {
		b.Fatal(err)
	}
	w := discardWriter{http.Header{}}
	b.Run("Key", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := httpedge.Key(r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := fingerprints.Request(idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: "k"},
				cmd); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("JSON", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := httpedge.JSON(http.StatusCreated, cmd); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			clear(w.header)
			edge.Write(w, res, nil)
		}
	})
	b.Run("Mismatch", func(b *testing.B) {
		quiet := httpedge.Edge{Logger: slog.New(slog.DiscardHandler)}
		b.ReportAllocs()
		for b.Loop() {
			clear(w.header)
			quiet.Write(w, idempotency.Result{}, &idempotency.MismatchError{State: idempotency.Completed})
		}
	})
}

// BenchmarkMiddleware: the same around a handler that knows nothing of keys.
func BenchmarkMiddleware(b *testing.B) {
	h := httpedge.Middleware(noGuard{}, httpedge.OneTenant, httpedge.Config{})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, orderBody)
		}))
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(httpedge.HeaderKey, "8e03978e-40d5-43e8-bc93-6894a57f9324")
	w := discardWriter{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		r.Body = io.NopCloser(strings.NewReader(orderBody))
		h.ServeHTTP(w, r)
	}
}
