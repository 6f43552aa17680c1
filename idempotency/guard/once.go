package guard

import (
	"io"
	"net/http"
	"strings"
)

// SendOnce returns a transport for calls to a provider. net/http sends a POST or PATCH with an Idempotency-Key a second
// time by itself when a reused connection breaks before the answer: a provider that ignores keys does it twice, and its
// refusal of the second hides that the first was done. This transport leaves the repetition to the guard, which asks
// first. A nil base is http.DefaultTransport.
func SendOnce(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return sendOnce{base}
}

type sendOnce struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper. net/http does not repeat a request whose body it cannot read again.
func (s sendOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return s.base.RoundTrip(r)
	}
	once := *r
	once.GetBody = nil
	if once.Body == nil || once.Body == http.NoBody {
		once.Body = io.NopCloser(strings.NewReader(""))
	}
	return s.base.RoundTrip(&once)
}
