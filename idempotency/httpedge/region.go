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

// headerForwarded is the region that has forwarded a request, which no region forwards again: regions that disagree
// about a home would forward it in a loop.
const headerForwarded = "Effectonce-Forwarded-By"

// Region calls next if this region is the home of the request's key. Otherwise the home's entry of homes serves the
// request, normally made by Forward. Without an entry, and for a request that another region has forwarded, the answer
// is 421 with the code IDEMPOTENCY_WRONG_REGION and the home's name: the client repeats the request there.
//
// key returns a request's key, with the authenticated tenant; it must not read the body. Its error is answered by
// Write.
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

// Forward forwards requests to the same path of another region, with all headers, including credentials: the regions
// must trust each other. Without an answer the request may have been done there: the client gets 503 with the code
// IDEMPOTENCY_OUTCOME_UNKNOWN. It is never run here instead. A nil transport is http.DefaultTransport; its timeouts
// bound the wait.
func (e Edge) Forward(to *url.URL, transport http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
		Transport: transport,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			e.log().Warn("a request could not be forwarded to its home region", "region", to.Host, "error", err)
			retryAfter(w, cmp.Or(e.RetryUnknown, 15*time.Second))
			e.Problem(w, Problem{
				Code: CodeUnknown, State: idempotency.Unknown,
				Detail: "the home region of this key does not answer, and may have done the request: repeat it with " +
					"the same Idempotency-Key; with a new key it may be done twice",
			})
		},
	}
}

func (e Edge) wrongRegion(w http.ResponseWriter, wrong *keys.WrongRegionError) {
	e.Problem(w, Problem{
		Code: CodeWrongRegion, HomeRegion: wrong.Home,
		Detail: "the home of this key is another region: repeat the request there, with the same Idempotency-Key",
	})
}
