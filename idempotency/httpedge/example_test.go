package httpedge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/memstore"
)

// The handler comes first: it reads the key, validates, and only then asks for it. Over Postgres it would call
// pgstore's InTx in place of Do.
func Example() {
	guard, err := guard.New(memstore.New(memstore.Config{}), guard.Config{})
	if err != nil {
		panic(err)
	}
	made := 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res, err := func() (idempotency.Result, error) {
			var cmd struct {
				Amount int64 `json:"amount"`
			}
			key, err := httpedge.Key(r)
			if err != nil {
				return idempotency.Result{}, err
			}
			if json.NewDecoder(r.Body).Decode(&cmd) != nil || cmd.Amount <= 0 {
				return idempotency.Result{}, &httpedge.Problem{
					Code:   httpedge.CodeBadRequest,
					Detail: "amount must be positive",
				}
			}
			req, err := idempotency.NewRequest(idempotency.Key{Tenant: "acme", Operation: "payment.create", Value: key},
				cmd)
			if err != nil {
				return idempotency.Result{}, err
			}
			return guard.Do(r.Context(), req, func(context.Context) (idempotency.Result, error) {
				made++
				return httpedge.JSON(http.StatusCreated, map[string]int{"payment": made})
			})
		}()
		httpedge.Write(w, res, err)
	})
	for _, body := range []string{`{"amount": 100}`, `{ "amount":100 }`, `{"amount": 200}`} {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed"), w.Header().Get("Content-Type"))
	}
	fmt.Println(made)
	// Output:
	// 201  application/json
	// 201 true application/json
	// 422  application/problem+json
	// 1
}

// A handler that knows nothing of keys. Say who asks; say Atomic when a 5xx of the handler leaves nothing behind.
func ExampleMiddleware() {
	guard, err := guard.New(memstore.New(memstore.Config{}), guard.Config{})
	if err != nil {
		panic(err)
	}
	tenant := func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil } // from your authentication
	mux := http.NewServeMux()
	mux.Handle("POST /payments", httpedge.Middleware(guard, tenant, httpedge.Config{Classify: httpedge.Atomic})(
		http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, "paid")
			})))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%d %s, replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 paid, replayed: ""
	// 201 paid, replayed: "true"
}
