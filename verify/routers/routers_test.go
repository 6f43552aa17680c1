package routers_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/memstore"
	"github.com/effectonce/effectonce/verify/routers"
)

// route is a router with two routes: POST /accounts/:id/things with the middleware, and POST /open without. Both answer
// 201 with the id and the body, or 500 for the body "fail".
type route struct {
	make     func(mw func(http.Handler) http.Handler, do func(id, body string) (int, string)) http.Handler
	template string // the router's pattern
}

func routes() map[string]route {
	return map[string]route{
		"net/http": {newMux, "POST /accounts/{id}/things"},
		"chi":      {newChi, "POST /accounts/{id}/things"},
		"gin":      {newGin, "POST /accounts/:id/things"},
		// echo does not pass its pattern to a net/http middleware: set an Operation
		"echo": {newEcho, "POST /accounts/1/things"},
	}
}

func newMux(mw func(http.Handler) http.Handler, do func(id, body string) (int, string)) http.Handler {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status, text := do(r.PathValue("id"), string(body))
		w.Header().Set("Location", "/things/1")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/things", mw(h))
	mux.Handle("POST /open", h)
	return mux
}

func newChi(mw func(http.Handler) http.Handler, do func(id, body string) (int, string)) http.Handler {
	h := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status, text := do(chi.URLParam(r, "id"), string(body))
		w.Header().Set("Location", "/things/1")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
	r := chi.NewRouter()
	r.With(mw).Post("/accounts/{id}/things", h)
	r.Post("/open", h)
	return r
}

func newGin(mw func(http.Handler) http.Handler, do func(id, body string) (int, string)) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	h := func(c *gin.Context) {
		body, _ := io.ReadAll(c.Request.Body)
		status, text := do(c.Param("id"), string(body))
		c.Header("Location", "/things/1")
		c.String(status, "%s", text)
	}
	r := gin.New()
	r.POST("/accounts/:id/things", routers.Gin(mw), h)
	r.POST("/open", h)
	return r
}

func newEcho(mw func(http.Handler) http.Handler, do func(id, body string) (int, string)) http.Handler {
	h := func(c echo.Context) error {
		body, _ := io.ReadAll(c.Request().Body)
		status, text := do(c.Param("id"), string(body))
		c.Response().Header().Set("Location", "/things/1")
		return c.String(status, text)
	}
	e := echo.New()
	e.POST("/accounts/:id/things", h, echo.WrapMiddleware(mw))
	e.POST("/open", h)
	return e
}

func TestRouters(t *testing.T) {
	for name, router := range routes() {
		t.Run(name, func(t *testing.T) {
			store := memstore.New(memstore.Config{})
			guard, err := guard.New(store, guard.Config{Lease: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			var runs atomic.Int64
			mw := httpedge.Middleware(guard, httpedge.OneTenant,
				httpedge.Config{Edge: httpedge.Edge{Logger: slog.New(slog.DiscardHandler)}, Classify: httpedge.Atomic})
			h := router.make(mw, func(id, body string) (int, string) {
				runs.Add(1)
				if body == "fail" {
					return http.StatusInternalServerError, "failed"
				}
				return http.StatusCreated, id + " " + body
			})
			post := func(path, key, body string) *httptest.ResponseRecorder {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
				r.Header.Set("Content-Type", "text/plain")
				if key != "" {
					r.Header.Set("Idempotency-Key", key)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w
			}
			const path = "/accounts/1/things"
			first, again := post(path, "k", "a body"), post(path, "k", "a body")
			if first.Code != 201 || first.Body.String() != "1 a body" || again.Code != 201 ||
				again.Body.String() != first.Body.String() || runs.Load() != 1 {
				t.Errorf("%d %q, then %d %q after %d runs", first.Code, first.Body, again.Code, again.Body, runs.Load())
			}
			if first.Header().Get("Idempotent-Replayed") != "" || again.Header().Get("Idempotent-Replayed") != "true" ||
				again.Header().Get("Location") != "/things/1" ||
				again.Header().Get("Content-Type") != first.Header().Get("Content-Type") {
				t.Errorf("%v, then %v", first.Header(), again.Header())
			}
			if w := post(path, "k", "another"); w.Code != 422 {
				t.Errorf("another body: %d", w.Code)
			}
			if w := post(path, "", "a body"); w.Code != 400 {
				t.Errorf("no key: %d", w.Code)
			}
			for range 2 { // a 500 is not recorded
				if w := post(path, "k2", "fail"); w.Code != 500 || w.Body.String() != "failed" {
					t.Errorf("%d %q", w.Code, w.Body)
				}
			}
			post("/open", "k", "x")
			post("/open", "k", "x")
			if runs.Load() != 5 {
				t.Errorf("%d runs, want 5", runs.Load())
			}
			if _, found, _ := store.Get(t.Context(), idempotency.Key{Operation: router.template, Value: "k"}); !found {
				t.Errorf("the operation is not %q", router.template)
			}
		})
	}
}
