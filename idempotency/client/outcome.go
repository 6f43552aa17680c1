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

// String names it.
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

func (e *Error) Error() string {
	what := "whether it was done is not known"
	if e.Definite {
		what = "it was not done"
	}
	return fmt.Sprintf("after %d attempts (%s): %v", e.Attempts, what, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

type intentKey struct{}

// intent is what its attempts have shown so far.
type intent struct {
	key      string
	attempts int
	doubt    bool   // an attempt may have reached the server, and nothing since has said what became of it
	strayed  bool   // a redirect made another method of it: the answer is another question's
	code     string // of the last answer, when it was a problem
	failure  string // its failure
	first    int    // its first_status
}

// Repeat returns a context for a request that repeats an intent under its old key, when an earlier call for it ended
// Unknown or was cut off: a refusal of this call then proves nothing about that one's attempts, unless it is the
// server's first answer.
func Repeat(ctx context.Context) context.Context {
	return context.WithValue(ctx, intentKey{}, &intent{doubt: true})
}

// intentOf returns the intent of a context, nil for none.
func intentOf(ctx context.Context) *intent {
	i, _ := ctx.Value(intentKey{}).(*intent)
	return i
}

// begin finds out whether a request is a new intent, or one that goes on: repeated by the caller, or redirected by
// http.Client.
func begin(r *http.Request) *intent {
	i := &intent{key: r.Header.Get(HeaderKey)}
	if was := intentOf(r.Context()); was != nil {
		i.doubt = was.doubt
	}
	if from := r.Response; from != nil && from.Request != nil {
		if was := intentOf(from.Request.Context()); was != nil {
			i.key, i.doubt = was.key, was.doubt
			i.strayed = was.strayed || r.Method != from.Request.Method
		}
	}
	return i
}

// Outcome says what an answer of a Transport, or of a http.Client over one, means for the intent. It does not read the
// body.
//
// Once the fate of an attempt is unknown, only the server's record of the key can refuse: a replayed answer, or a
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
	i := &intent{doubt: true}
	if res.Request != nil {
		if of := intentOf(res.Request.Context()); of != nil {
			i = of
		}
	}
	switch status := res.StatusCode; {
	case i.strayed, later(res, i.code):
		return Unknown
	case i.first != 0: // the problem tells what the first answer was
		return verdict(i.first)
	case finished(i.code):
		if i.failure != "" {
			return NotDone
		}
		return Done
	case status < 300, res.Header.Get(headerReplayed) != "":
		return verdict(status)
	case status < 400, status >= 500, status == http.StatusRequestTimeout, i.doubt, taken(i.code):
		return Unknown
	}
	return NotDone
}

// verdict is what the first answer's status says.
func verdict(status int) Verdict {
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

// finished: it was done or refused once, and the answer is no longer kept.
func finished(code string) bool {
	return code == "IDEMPOTENCY_RESULT_EXPIRED" || code == "IDEMPOTENCY_RESPONSE_NOT_KEPT"
}

// taken: the server refuses the key for what came under it before. That may have been this intent: fingerprinted by
// another release, sent twice by a proxy, or long ago.
func taken(code string) bool {
	return code == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST" || code == "IDEMPOTENCY_KEY_OUTSIDE_WINDOW"
}

// later tells whether an answer says that the request is being worked at.
func later(res *http.Response, code string) bool {
	switch res.StatusCode {
	case http.StatusAccepted:
		return res.Header.Get("Retry-After") != ""
	case http.StatusConflict:
		return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "" && res.Header.Get("Retry-After") != ""
	}
	return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
}

// judge looks at an attempt that wrote the request sent times: whether another one may help, and after what time at the
// earliest.
func (i *intent) judge(res *http.Response, sent int64, err error) (again bool, after time.Duration) {
	if err != nil {
		i.doubt = i.doubt || sent > 0 || !unsent(err)
		return true, 0
	}
	i.doubt = i.doubt || sent > 1 // net/http repeats by itself what has a key, and tells nobody
	i.look(res)
	switch res.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests:
		again = true
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again, i.doubt = true, true
	default:
		again = later(res, i.code)
		i.doubt = i.doubt || again
	}
	return again, retryAfter(res)
}

// look reads the code of a problem, and leaves the body as it was.
func (i *intent) look(res *http.Response) {
	i.code, i.failure, i.first = "", "", 0
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		return
	}
	const most = 64 << 10
	head, err := io.ReadAll(io.LimitReader(res.Body, most))
	from := io.MultiReader(bytes.NewReader(head), res.Body)
	if err != nil {
		from = io.MultiReader(bytes.NewReader(head), failing{err})
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
		i.doubt = true // it may say that it was done
		return
	}
	i.code, i.failure, i.first = p.Code, p.Failure, p.First
}

type failing struct{ err error }

// Read is of io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// unsent tells whether an error came before a connection was there.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// retryAfter is what the header says, in seconds or as a date; the date counts from the server's own.
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

// end is the last attempt's answer as the caller gets it.
func (i *intent) end(res *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, &Error{Key: i.key, Attempts: i.attempts, Definite: !i.doubt, Err: err}
	}
	return res, nil
}
