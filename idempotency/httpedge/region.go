package httpedge

import (
	"cmp"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/keys"
)

// headerForwarded is the region that has passed a request on. A request is passed on once: regions that disagree about
// a home must not send it in circles.
const headerForwarded = "Effectonce-Forwarded-By"

// Region lets a request through to next when its key lives in this region. Otherwise the home's entry of homes serves
// it, normally made by Forward; without an entry, and for a request that another region has passed on already, the
// answer is 421 with the code IDEMPOTENCY_WRONG_REGION and the home's name: the client asks that region, with the same
// key.
//
// key says which key a request has, its tenant from authentication; it must not read the body. Its error is answered as
// Write does.
func (e Edge) Region(regions keys.Regions, key func(*http.Request) (idempotency.Key, error),
	homes map[string]http.Handler, next http.Handler,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		if err == nil {
			err = regions.Check(k)
		}
		var wrong *keys.WrongRegionError
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.As(err, &wrong) && homes[wrong.Home] != nil && r.Header.Get(headerForwarded) == "":
			r = r.Clone(r.Context())
			r.Header.Set(headerForwarded, wrong.Here)
			homes[wrong.Home].ServeHTTP(w, r)
		default:
			e.Write(w, idempotency.Result{}, err)
		}
	})
}

// Forward passes requests on to the same path of another region, with all their headers, credentials too: it is for
// regions of one service that trust each other. When no answer comes, the request may have been done there: the client
// is told so, 503 with the code IDEMPOTENCY_OUTCOME_UNKNOWN, and repeats it with the same key. It is never run here
// instead. transport nil is http.DefaultTransport; its time-outs bound the wait.
func (e Edge) Forward(to *url.URL, transport http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
		Transport: transport,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			e.log().Warn("a request could not be passed on to its home region", "region", to.Host, "error", err)
			retryAfter(w, cmp.Or(e.RetryUnknown, 15*time.Second))
			e.Problem(w, Problem{
				Code: CodeUnknown, State: idempotency.Unknown,
				Detail: "this key's home region does not answer, and may have done the request: repeat it with the " +
					"same Idempotency-Key; a new key may do it twice",
			})
		},
	}
}

func (e Edge) wrongRegion(w http.ResponseWriter, wrong *keys.WrongRegionError) {
	e.Problem(w, Problem{
		Code: CodeWrongRegion, HomeRegion: wrong.Home,
		Detail: "this key lives in another region: repeat the request there, with the same Idempotency-Key",
	})
}
