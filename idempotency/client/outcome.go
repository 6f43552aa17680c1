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

// Verdict is what is known of an intent after its attempts.
type Verdict int

const (
	// Unknown: it may have happened. Repeat it with the same key only, or look for what it would have made.
	Unknown Verdict = iota
	// Done: it happened, once.
	Done
	// NotDone: it certainly did not happen, and will not by this key's attempts.
	NotDone
)

// String is "unknown", "done" or "not done".
func (v Verdict) String() string { return [...]string{"unknown", "done", "not done"}[v] }

// Error is the end of an intent without an answer.
type Error struct {
	// Key is the intent's: needed to repeat it.
	Key string
	// Attempts is how often it was tried.
	Attempts int
	// Definite says that no attempt can have reached the server: it did not happen.
	Definite bool
	Err      error
}

// Error says after how many attempts, whether the intent may have been done, and the last attempt's error.
func (e *Error) Error() string {
	what := "whether it was done is not known"
	if e.Definite {
		what = "it was not done"
	}
	return fmt.Sprintf("after %d attempts (%s): %v", e.Attempts, what, e.Err)
}

// Unwrap returns the last attempt's error.
func (e *Error) Unwrap() error { return e.Err }

type intentKey struct{}

// intent is what the attempts at one request have shown so far.
type intent struct {
	key         string
	attempts    int
	uncertain   bool   // an attempt may have reached the server, and nothing since has said what became of it
	redirected  bool   // a redirect made another method of it: the answer is another question's
	code        string // of the last answer, when it was a problem
	failure     string // its failure
	firstStatus int    // its first_status
}

// Repeat returns a context for a request that repeats an intent under its old key, when an earlier call for it ended
// Unknown or was cut off: a refusal of this call then proves nothing about that one's attempts, unless it is the
// server's first answer.
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
	if was := intentOf(r.Context()); was != nil {
		i.uncertain = was.uncertain
	}
	if from := r.Response; from != nil && from.Request != nil {
		if was := intentOf(from.Request.Context()); was != nil {
			i.key, i.uncertain = was.key, was.uncertain
			i.redirected = was.redirected || r.Method != from.Request.Method
		}
	}
	return i
}

// Outcome says what an answer of a Transport, or of a http.Client over one, means for the intent. It does not read the
// body.
//
// Once an attempt has an unknown outcome, only the server's record of the key can refuse: a replayed answer, or a
// problem with a first_status. Any other refusal is Unknown then. It may come from something in front of the service,
// from a release with another fingerprint, or from a handler that finds what the first attempt made. The same goes for
// an answer that does not come from a Transport.
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
		if of := intentOf(res.Request.Context()); of != nil {
			i = of
		}
	}
	switch status := res.StatusCode; {
	case i.redirected, inProgress(res, i.code):
		return Unknown
	case i.firstStatus != 0: // the problem tells what the first answer was
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

// verdictOf is what the first answer's status says.
func verdictOf(status int) Verdict {
	switch {
	case status < 400:
		return Done
	case status < 500:
		return NotDone
	}
	return Unknown
}

// Key returns the key that an answer's intent had, empty if the answer is from elsewhere.
func Key(res *http.Response) string {
	if res != nil && res.Request != nil {
		return res.Request.Header.Get(HeaderKey)
	}
	return ""
}

// resultGone says whether the request was done or refused once, and its answer is no longer kept.
func resultGone(code string) bool {
	return code == "IDEMPOTENCY_RESULT_EXPIRED" || code == "IDEMPOTENCY_RESPONSE_NOT_KEPT"
}

// keyRefused says whether the server refuses the key for what came under it before. That may have been this intent:
// fingerprinted by another release, sent twice by a proxy, or long ago.
func keyRefused(code string) bool {
	return code == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST" || code == "IDEMPOTENCY_KEY_OUTSIDE_WINDOW"
}

// inProgress says whether an answer says that the request may still be worked at.
func inProgress(res *http.Response, code string) bool {
	switch res.StatusCode {
	case http.StatusAccepted:
		return res.Header.Get("Retry-After") != ""
	case http.StatusConflict:
		return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "" && res.Header.Get("Retry-After") != ""
	}
	return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
}

// judge notes what an attempt showed that wrote the request sent times. It returns whether another attempt may help,
// and the earliest time for it.
func (i *intent) judge(res *http.Response, sent int64, err error) (again bool, after time.Duration) {
	if err != nil {
		i.uncertain = i.uncertain || sent > 0 || !unsent(err)
		return true, 0
	}
	i.uncertain = i.uncertain || sent > 1 // net/http repeats by itself what has a key, and tells nobody
	i.readProblem(res)
	switch res.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests:
		again = true
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again, i.uncertain = true, true
	default:
		again = inProgress(res, i.code)
		i.uncertain = i.uncertain || again
	}
	return again, retryAfter(res)
}

// readProblem reads the code of a problem, and leaves the body to be read again.
func (i *intent) readProblem(res *http.Response) {
	i.code, i.failure, i.firstStatus = "", "", 0
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		return
	}
	const most = 64 << 10
	head, err := io.ReadAll(io.LimitReader(res.Body, most))
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
		i.uncertain = true // it may say that it was done
		return
	}
	i.code, i.failure, i.firstStatus = p.Code, p.Failure, p.First
}

type errReader struct{ err error }

// Read implements io.Reader.
func (f errReader) Read([]byte) (int, error) { return 0, f.err }

// unsent tells whether an error came before a connection was there.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// retryAfter is what the header Retry-After says, in seconds or as a date, which counts from the server's own Date.
func retryAfter(res *http.Response) time.Duration {
	text := res.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	now, unsaid := http.ParseTime(res.Header.Get("Date"))
	if err != nil || unsaid != nil {
		return 0
	}
	return max(0, at.Sub(now))
}

// failed is the error of an intent that ends without an answer.
func (i *intent) failed(err error) error {
	return &Error{Key: i.key, Attempts: i.attempts, Definite: !i.uncertain, Err: err}
}
