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

// headerNotKept stands in a stored result whose body was not kept, and says why. No handler's header has this name: it
// is on no list.
const headerNotKept = "Effectonce-Not-Kept"

const defaultMaxBody = 1 << 20

// kept belong to the body or to what was made: they are the same for every caller, whenever it comes.
func kept(name string) bool {
	switch name {
	case "Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition", "Content-Location", "Location",
		"Link",
		"Etag", "Last-Modified", "Cache-Control", "Vary", "Allow", "Deprecation", "Sunset":
		return true
	}
	return false
}

// never belong to one caller, one moment or one connection.
func never(name string) bool {
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

// storable returns the headers that are kept and replayed, in canonical form. It shares their values.
func (e Edge) storable(h map[string][]string) map[string][]string {
	out := map[string][]string{}
	e.keep(out, h)
	return out
}

// keep sets what is kept and replayed of h in to.
func (e Edge) keep(to, h map[string][]string) {
	for name, values := range h {
		name = http.CanonicalHeaderKey(name)
		listed := slices.ContainsFunc(e.Headers, func(s string) bool { return http.CanonicalHeaderKey(s) == name })
		if (kept(name) || listed) && !never(name) && len(values) > 0 {
			to[name] = values
		}
	}
}

// JSON is a result with v as its body, for the work that InTx or a guard runs. An error means that v cannot be written
// as JSON, or that the code is a 5xx: it would be replayed for ever, so the work returns an error in its place.
func JSON(code int, v any) (idempotency.Result, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return idempotency.Result{}, fmt.Errorf("writing the answer as JSON: %w", err)
	}
	res := idempotency.Result{
		Code: code, Body: append(body, '\n'), Header: map[string][]string{"Content-Type": {"application/json"}},
	}
	if err := res.Check(); err != nil {
		return idempotency.Result{}, err
	}
	return res, nil
}

// JSON is the function JSON's result as it is to be stored: see Kept.
func (e Edge) JSON(code int, v any) (idempotency.Result, error) {
	res, err := JSON(code, v)
	if err != nil {
		return res, err
	}
	return e.Kept(res)
}

// Kept returns res as it is to be stored: without headers that are not kept, and redacted. Work that InTx or a guard
// runs calls it last; the middleware does by itself. A 5xx, and a body above MaxBody, are an error, by which the work
// is rolled back: of a large one keep a reference in Resource instead, and Render it.
func (e Edge) Kept(res idempotency.Result) (idempotency.Result, error) {
	if most := e.maxBody(); len(res.Body) > most {
		return res, fmt.Errorf("the answer has %d bytes, %d are kept: return a Resource without a body", len(res.Body),
			most)
	}
	res.Header = e.storable(res.Header)
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

// Render makes the answer of a result that refers to a resource. show is called for a success that has a Resource, when
// it is replayed or has no body; it looks the resource up and returns the answer in the form that res.Schema says, or a
// Problem such as Gone. What show leaves empty of Code, Resource and Schema stays as it was. Errors, refusals and
// results without a Resource pass through.
func Render(ctx context.Context, res idempotency.Result, err error,
	show func(ctx context.Context, res idempotency.Result) (idempotency.Result, error),
) (idempotency.Result, error) {
	if err != nil || res.Failure != "" || res.Resource == "" || res.Body != nil && !res.Replayed {
		return res, err
	}
	shown, err := show(ctx, res)
	var problem *Problem
	if errors.As(err, &problem) && problem.FirstStatus == 0 {
		told := *problem
		told.FirstStatus = res.Code // it was done: what has become of it since is no refusal
		err = &told
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
