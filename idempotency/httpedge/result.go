package httpedge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/effectonce/effectonce/idempotency"
)

// headerNotKept is the header of a stored result without its body, with the reason. Handlers cannot set it.
const headerNotKept = "Effectonce-Not-Kept"

const defaultMaxBody = 1 << 20

// isReplayed reports whether a header is about the body or the resource, and so the same for every caller.
func isReplayed(name string) bool {
	switch name {
	case "Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location",
		"Link",
		"Etag", "Last-Modified", "Cache-Control", "Vary", "Allow", "Deprecation", "Sunset":
		return true
	}
	return false
}

// isNeverReplayed reports whether a header is about one caller, time or connection.
func isNeverReplayed(name string) bool {
	switch name {
	case "Date", "Age", "Expires", "Retry-After", "Set-Cookie", "Set-Cookie2", "Authorization", "Www-Authenticate",
		"Authentication-Info",
		"Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info", "Connection", "Proxy-Connection",
		"Keep-Alive", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length", "Via", "Server", "Alt-Svc", "Strict-Transport-Security",
		"Clear-Site-Data",
		"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Traceparent", "Tracestate", "X-Request-Id",
		HeaderReplayed, HeaderPolicy, headerNotKept, headerSealed:
		return true
	}
	return false
}

// storedHeaders returns the headers to store, in canonical form. It shares their values.
func (e Edge) storedHeaders(h map[string][]string) map[string][]string {
	out := map[string][]string{}
	e.copyHeaders(out, h)
	return out
}

// copyHeaders copies the replayed headers.
func (e Edge) copyHeaders(to, h map[string][]string) {
	for name, values := range h {
		name = http.CanonicalHeaderKey(name)
		listed := slices.ContainsFunc(e.Headers, func(s string) bool { return http.CanonicalHeaderKey(s) == name })
		if (isReplayed(name) || listed) && !isNeverReplayed(name) && len(values) > 0 {
			to[name] = values
		}
	}
}

// JSON returns a result with v as body, for work of InTx or a guard. It returns an error if v cannot be marshaled, or
// the code is a 5xx, which must not be replayed: return an error from the work instead.
func JSON(code int, v any) (idempotency.Result, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return idempotency.Result{}, fmt.Errorf("marshal the answer: %w", err)
	}
	res := idempotency.Result{
		Code: code, Body: append(body, '\n'), Header: map[string][]string{"Content-Type": {"application/json"}},
	}
	if err := res.Check(); err != nil {
		return idempotency.Result{}, err
	}
	return res, nil
}

// JSON is the function JSON with Kept.
func (e Edge) JSON(code int, v any) (idempotency.Result, error) {
	res, err := JSON(code, v)
	if err != nil {
		return res, err
	}
	return e.Kept(res)
}

// Kept returns res for storing: redacted, and without headers that are not replayed. Work of InTx or a guard calls it
// last; the middleware does so itself. It returns an error for a 5xx and for a body above MaxBody, and the work is
// rolled back: return a reference in Resource instead of a large body, and Render it.
func (e Edge) Kept(res idempotency.Result) (idempotency.Result, error) {
	if limit := e.maxBody(); len(res.Body) > limit {
		return res, fmt.Errorf("the answer has %d bytes, more than the %d of MaxBody: return a Resource without a body",
			len(res.Body), limit)
	}
	res.Header = e.storedHeaders(res.Header)
	if e.Redact != nil {
		code := res.Code
		e.Redact(&res)
		res.Code = code
	}
	return res, res.Check()
}

func (e Edge) maxBody() int {
	switch {
	case e.MaxBody < 0:
		return math.MaxInt
	case e.MaxBody == 0:
		return defaultMaxBody
	}
	return e.MaxBody
}

// Render renders the answer of a result with a Resource. It calls show for a success that is replayed or has no body;
// show looks the resource up and returns the answer in the format res.Schema, or a Problem such as Gone. Empty fields
// Code, Resource and Schema are filled from res. Errors, refusals and results without a Resource are returned
// unchanged.
func Render(ctx context.Context, res idempotency.Result, err error,
	show func(ctx context.Context, res idempotency.Result) (idempotency.Result, error),
) (idempotency.Result, error) {
	if err != nil || res.Failure != "" || res.Resource == "" || res.Body != nil && !res.Replayed {
		return res, err
	}
	shown, err := show(ctx, res)
	var problem *Problem
	if errors.As(err, &problem) && problem.FirstStatus == 0 {
		withStatus := *problem
		withStatus.FirstStatus = res.Code // the request was done: the problem is not a refusal
		err = &withStatus
	}
	if err != nil {
		return res, err
	}
	if shown.Code == 0 {
		shown.Code = res.Code
	}
	if shown.Resource == "" {
		shown.Resource = res.Resource
	}
	if shown.Schema == 0 {
		shown.Schema = res.Schema
	}
	shown.Replayed, shown.At = res.Replayed, res.At
	return shown, nil
}
