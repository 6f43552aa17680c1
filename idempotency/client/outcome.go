package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Verdict is the outcome of an intent as the caller knows it after the attempts.
type Verdict int

const (
	// Unknown: it may have happened. Repeat it with the same key only, or look for its effect.
	Unknown Verdict = iota
	// Done: it happened, once.
	Done
	// NotDone: it certainly did not happen, and no attempt under this key can still do it.
	NotDone
)

// String is "unknown", "done" or "not done".
func (v Verdict) String() string { return [...]string{"unknown", "done", "not done"}[v] }

// Error is the end of an intent without an answer.
type Error struct {
	// Key is the intent's key, for repeating it.
	Key      string
	Attempts int
	// Definite: no attempt can have reached the server, so it did not happen.
	Definite bool
	Err      error
}

// Error has the number of attempts, whether the intent may have been done, and the last attempt's error.
func (e *Error) Error() string {
	outcome := "the outcome is unknown"
	if e.Definite {
		outcome = "it was not done"
	}
	return fmt.Sprintf("after %d attempts (%s): %v", e.Attempts, outcome, e.Err)
}

// Unwrap returns the last attempt's error.
func (e *Error) Unwrap() error { return e.Err }

type intentKey struct{}

// intent is the state of a request after its attempts so far.
type intent struct {
	key         string
	attempts    int
	uncertain   bool   // an attempt may have reached the server, and its outcome is unknown
	redirected  bool   // a redirect changed the method, so the answer is to another request
	code        string // of the last answer, if it is a problem
	failure     string // likewise
	firstStatus int    // likewise
}

// Repeat returns a context for a request that repeats an intent under its old key, after a call that ended Unknown or
// with its process. A refusal of this call then proves nothing about the earlier attempts, unless it is the server's
// first answer.
func Repeat(ctx context.Context) context.Context {
	return context.WithValue(ctx, intentKey{}, &intent{uncertain: true})
}

// intentOf returns the intent of a context, nil for none.
func intentOf(ctx context.Context) *intent {
	i, _ := ctx.Value(intentKey{}).(*intent)
	return i
}

// intentFor returns the intent of a request: a new one, or that of an earlier request that the caller repeats or
// http.Client redirects.
func intentFor(r *http.Request) *intent {
	i := &intent{key: r.Header.Get(HeaderKey)}
	if earlier := intentOf(r.Context()); earlier != nil {
		i.uncertain = earlier.uncertain
	}
	if from := r.Response; from != nil && from.Request != nil {
		if earlier := intentOf(from.Request.Context()); earlier != nil {
			i.key, i.uncertain = earlier.key, earlier.uncertain
			i.redirected = earlier.redirected || r.Method != from.Request.Method
		}
	}
	return i
}

// Outcome returns the verdict by an answer of a Transport or of a http.Client over one. It does not read the body.
//
// After an attempt with an unknown outcome, as for an answer that is not from a Transport, a refusal is Unknown unless
// it comes from the server's record of the key: a replayed answer, or a problem with a first_status. Any other may come
// from a proxy, from a release with another fingerprint, or from a handler that finds the first attempt's effect.
func Outcome(res *http.Response, err error) Verdict {
	var e *Error
	switch {
	case errors.As(err, &e) && e.Definite:
		return NotDone
	case err != nil || res == nil:
		return Unknown
	}
	i := &intent{uncertain: true}
	if res.Request != nil {
		if known := intentOf(res.Request.Context()); known != nil {
			i = known
		}
	}
	switch status := res.StatusCode; {
	case i.redirected, inProgress(res, i.code):
		return Unknown
	case i.firstStatus != 0:
		return verdictOf(i.firstStatus)
	case resultGone(i.code):
		if i.failure != "" {
			return NotDone
		}
		return Done
	case status < 300, res.Header.Get(headerReplayed) != "":
		return verdictOf(status)
	case status < 400, status >= 500, status == http.StatusRequestTimeout, i.uncertain, keyRefused(i.code):
		return Unknown
	}
	return NotDone
}

// verdictOf returns the verdict by the status of the first answer.
func verdictOf(status int) Verdict {
	switch {
	case status < 400:
		return Done
	case status < 500:
		return NotDone
	}
	return Unknown
}

// Key returns the key of an answer's intent, empty if the answer is not from a Transport.
func Key(res *http.Response) string {
	if res != nil && res.Request != nil {
		return res.Request.Header.Get(HeaderKey)
	}
	return ""
}

// resultGone reports whether the request was done or refused, and its answer is no longer kept.
func resultGone(code string) bool {
	return code == "IDEMPOTENCY_RESULT_EXPIRED" || code == "IDEMPOTENCY_RESPONSE_NOT_KEPT"
}

// keyRefused reports whether the server refuses the key for an earlier request. That may be this intent: with another
// release's fingerprint, sent twice by a proxy, or too old.
func keyRefused(code string) bool {
	return code == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST" || code == "IDEMPOTENCY_KEY_OUTSIDE_WINDOW"
}

// inProgress reports whether by this answer the request may still be in progress.
func inProgress(res *http.Response, code string) bool {
	switch res.StatusCode {
	case http.StatusAccepted:
		return res.Header.Get("Retry-After") != ""
	case http.StatusConflict:
		return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "" && res.Header.Get("Retry-After") != ""
	}
	return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
}

// record records the result of an attempt that sent the request sent times. It returns whether to retry, and after
// which delay at the earliest.
func (i *intent) record(res *http.Response, sent int64, err error) (retry bool, delay time.Duration) {
	if err != nil {
		i.uncertain = i.uncertain || sent > 0 || !unsent(err)
		return true, 0
	}
	i.uncertain = i.uncertain || sent > 1 // net/http itself resends requests with a key
	i.readProblem(res)
	switch res.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests:
		retry = true
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		retry, i.uncertain = true, true
	default:
		retry = inProgress(res, i.code)
		i.uncertain = i.uncertain || retry
	}
	return retry, retryAfter(res)
}

// readProblem reads the members of a problem; the body can still be read whole.
func (i *intent) readProblem(res *http.Response) {
	i.code, i.failure, i.firstStatus = "", "", 0
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		return
	}
	const limit = 64 << 10
	head, err := io.ReadAll(io.LimitReader(res.Body, limit))
	from := io.MultiReader(bytes.NewReader(head), res.Body)
	if err != nil {
		from = io.MultiReader(bytes.NewReader(head), errReader{err})
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{from, res.Body}
	var p struct {
		Code    string `json:"code"`
		Failure string `json:"failure"`
		First   int    `json:"first_status"`
	}
	if json.Unmarshal(head, &p) != nil {
		i.uncertain = true // it may report that the intent was done
		return
	}
	i.code, i.failure, i.firstStatus = p.Code, p.Failure, p.First
}

type errReader struct{ err error }

// Read implements io.Reader.
func (f errReader) Read([]byte) (int, error) { return 0, f.err }

// unsent reports whether an error is that of dialing, before anything was sent.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// retryAfter returns the delay of the header Retry-After: seconds, or a date relative to the server's Date.
func retryAfter(res *http.Response) time.Duration {
	text := res.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	now, dateErr := http.ParseTime(res.Header.Get("Date"))
	if err != nil || dateErr != nil {
		return 0
	}
	return max(0, at.Sub(now))
}

// newError returns the error of an intent that ends without an answer.
func (i *intent) newError(err error) error {
	return &Error{Key: i.key, Attempts: i.attempts, Definite: !i.uncertain, Err: err}
}
