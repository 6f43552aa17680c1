package httpedge

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
)

// Code is the stable code of a problem, by which clients decide.
type Code string

// Codes with their default status, see Edge.Status.
const (
	CodeKeyMissing       Code = "IDEMPOTENCY_KEY_MISSING"                       // 400
	CodeKeyInvalid       Code = "IDEMPOTENCY_KEY_INVALID"                       // 400
	CodeKeyOutsideWindow Code = "IDEMPOTENCY_KEY_OUTSIDE_WINDOW"                // 400: too old, or in the future
	CodeKeyReused        Code = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST" // 422
	CodeInProgress       Code = "IDEMPOTENCY_REQUEST_IN_PROGRESS"               // 409, or 202 by Edge.At
	CodeUnknown          Code = "IDEMPOTENCY_OUTCOME_UNKNOWN"                   // 503, or 202 by Edge.At
	// 410: it was finished; its answer is no longer kept
	CodeExpired Code = "IDEMPOTENCY_RESULT_EXPIRED"
	// 410: it was done; its answer was too large or a stream
	CodeNotKept Code = "IDEMPOTENCY_RESPONSE_NOT_KEPT"
	// 422: refused for good, with the problem's failure
	CodeRefused Code = "REQUEST_REFUSED"
	// 421: the key's home is the problem's home_region
	CodeWrongRegion      Code = "IDEMPOTENCY_WRONG_REGION"
	CodeResourceNotFound Code = "RESOURCE_NOT_FOUND" // 404
	CodeResourceGone     Code = "RESOURCE_GONE"      // 410
	CodeResourceChanged  Code = "RESOURCE_CHANGED"   // 409
	CodeUnauthenticated  Code = "UNAUTHENTICATED"    // 401
	CodeTooLarge         Code = "REQUEST_TOO_LARGE"  // 413
	CodeBadRequest       Code = "BAD_REQUEST"        // 400
	CodeTryAgain         Code = "TRY_AGAIN"          // 503: repeat it with the same key
	CodeInternal         Code = "INTERNAL"           // 500
)

// Codes returns all codes with their default status.
func Codes() map[Code]int {
	return map[Code]int{
		CodeKeyMissing:       http.StatusBadRequest,
		CodeKeyInvalid:       http.StatusBadRequest,
		CodeKeyOutsideWindow: http.StatusBadRequest,
		CodeKeyReused:        http.StatusUnprocessableEntity,
		CodeInProgress:       http.StatusConflict,
		CodeUnknown:          http.StatusServiceUnavailable,
		CodeExpired:          http.StatusGone,
		CodeNotKept:          http.StatusGone,
		CodeRefused:          http.StatusUnprocessableEntity,
		CodeWrongRegion:      http.StatusMisdirectedRequest,
		CodeResourceNotFound: http.StatusNotFound,
		CodeResourceGone:     http.StatusGone,
		CodeResourceChanged:  http.StatusConflict,
		CodeUnauthenticated:  http.StatusUnauthorized,
		CodeTooLarge:         http.StatusRequestEntityTooLarge,
		CodeBadRequest:       http.StatusBadRequest,
		CodeTryAgain:         http.StatusServiceUnavailable,
		CodeInternal:         http.StatusInternalServerError,
	}
}

// title returns a code's title: the draft's where it has one.
func title(c Code, status int) string {
	switch c {
	case CodeKeyMissing:
		return "Idempotency-Key is missing"
	case CodeKeyInvalid:
		return "Idempotency-Key is malformed"
	case CodeKeyOutsideWindow:
		return "Idempotency-Key is too old or from the future"
	case CodeKeyReused:
		return "Idempotency-Key is already used"
	case CodeInProgress:
		return "A request is outstanding for this Idempotency-Key"
	case CodeUnknown:
		return "The outcome of this Idempotency-Key's request is unknown"
	case CodeWrongRegion:
		return "The home of this Idempotency-Key is another region"
	case CodeExpired, CodeNotKept:
		return "The answer to this Idempotency-Key's request is not kept"
	}
	return http.StatusText(status)
}

// Problem is a problem of RFC 9457. Write answers with a *Problem that a validation or Render's function returns.
type Problem struct {
	Type   string `json:"type"`   // empty: Edge.Types and the code
	Title  string `json:"title"`  // empty: the code's
	Status int    `json:"status"` // 0: the code's, or 500
	Detail string `json:"detail,omitempty"`
	Code   Code   `json:"code"`
	// State is that of the first command under this key.
	State idempotency.State `json:"state,omitempty"`
	// Resource is the created one, see idempotency.Result.
	Resource string `json:"resource,omitempty"`
	// FirstStatus and Failure are those of the first answer, if it is not kept or no longer true.
	FirstStatus int    `json:"first_status,omitempty"`
	Failure     string `json:"failure,omitempty"`
	// StatusURL is the operation-status resource.
	StatusURL string `json:"status_url,omitempty"`
	// HomeRegion is the key's home, if it is another region.
	HomeRegion string `json:"home_region,omitempty"`
}

// Error returns the code and the detail.
func (p *Problem) Error() string { return string(p.Code) + ": " + p.Detail }

// NotFound is a Problem for Render: the created resource does not exist. 404.
func NotFound(detail string) *Problem { return &Problem{Code: CodeResourceNotFound, Detail: detail} }

// Gone is a Problem for Render: the created resource was deleted. 410.
func Gone(detail string) *Problem { return &Problem{Code: CodeResourceGone, Detail: detail} }

// Changed is a Problem for Render: the state of the created resource no longer fits the answer. 409.
func Changed(detail string) *Problem { return &Problem{Code: CodeResourceChanged, Detail: detail} }

// defaultTypes is the prefix of a problem's type; the code in lower case follows.
const defaultTypes = "https://github.com/effectonce/effectonce/blob/main/docs/idempotency.md#"

// Problem answers with p and the defaults of its empty fields.
func (e Edge) Problem(w http.ResponseWriter, p Problem) {
	p.Code = cmp.Or(p.Code, CodeInternal)
	p.Status = cmp.Or(p.Status, e.Status[p.Code], Codes()[p.Code])
	if p.Status < 200 || p.Status > 599 {
		p.Status = http.StatusInternalServerError
	}
	p.Type = cmp.Or(p.Type, cmp.Or(e.Types, defaultTypes)+strings.ToLower(string(p.Code)))
	p.Title = cmp.Or(p.Title, title(p.Code, p.Status))
	e.send(w, p.Status, "application/problem+json", p)
}

// send writes JSON that must not be cached.
func (e Edge) send(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil { // cannot happen: v has strings and numbers only
		status, body = http.StatusInternalServerError, []byte("{}")
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	if e.Policy != "" {
		h.Set(HeaderPolicy, e.Policy)
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
