package httpedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/store"
)

// Edge is how this package answers. The zero value is ready to use.
type Edge struct {
	// Types begins the type of every problem; the code in lower case follows. Point it at your own page. Default: this
	// project's page about idempotency.
	Types string
	// Status changes the status of a code: some have 422 for validation and want 409 for a key that was used again.
	// Default: Codes.
	Status map[Code]int
	// Policy is the header Idempotency-Policy of every answer, made by the function Policy from what the store was told
	// to keep: the draft wants the expiry published. Default: no header.
	Policy string
	// RetryInProgress is the most that Retry-After says while another attempt works; what is left of its lease says the
	// rest. Default 2 s, for most are done long before their lease ends.
	RetryInProgress time.Duration
	// RetryUnknown is what Retry-After says while the outcome is unknown: about as long as recovery takes. Default 15
	// s.
	RetryUnknown time.Duration
	// StatusURL is where the caller can watch its operation, served by StatusHandler. While another attempt works or
	// the outcome is unknown, the answer is then 202 with this Location. It is a request's own: see At. Default: 409
	// and 503.
	StatusURL string
	// Headers are stored and replayed besides those that always are (Content-*, Location, Link, ETag and a few more).
	// Date, Set-Cookie, credentials and what belongs to the connection never are, whatever is listed.
	Headers []string
	// MaxBody is the largest body that is kept, in bytes: by JSON, Kept and the middleware. Default 1 MiB; negative:
	// any.
	MaxBody int
	// Redact takes out what must not be kept, before a result is stored: by JSON, Kept and the middleware. Neither the
	// first caller nor a retry sees what it took, for both get the same: to hide data from readers of the store only,
	// use a Sealer. It must not change Code. Default: nothing.
	Redact func(res *idempotency.Result)
	// OnReplay may add headers to a replayed answer. Default: none.
	OnReplay func(h http.Header, res idempotency.Result)
	// Logger takes errors whose text no client should see. Default slog.Default(). Keys and bodies are never in it.
	Logger *slog.Logger
}

// Policy says in a header what a client may rely on: for how many seconds a completed request's answer is replayed, and
// for how many its key stays taken. "replay=86400, remember=259200". A time without end is left out, as RFC 9651 has no
// word for it.
func Policy(keep idempotency.Retention) string {
	seconds := func(name string, d time.Duration) string {
		if d < 0 {
			return name
		}
		return fmt.Sprintf("%s=%d", name, int64(d/time.Second))
	}
	body, tombstone := keep.Terms()
	return seconds("replay", body) + ", " + seconds("remember", tombstone)
}

// At returns the edge for a request whose operation can be watched at this URL.
func (e Edge) At(url string) Edge {
	e.StatusURL = url
	return e
}

// Write answers as the zero Edge does.
func Write(w http.ResponseWriter, res idempotency.Result, err error) { Edge{}.Write(w, res, err) }

// Write answers a request with what a guard, a store's InTx or Key returned: the result, or a problem for the error. A
// *Problem is written as it is. Errors of package idempotency have the codes above. Any other is 500, and only the log
// says what it was.
func (e Edge) Write(w http.ResponseWriter, res idempotency.Result, err error) {
	class, _ := idempotency.Classify(err)
	if err == nil || class == idempotency.ClassTerminal && (res.Code != 0 || res.Failure != "") {
		e.answer(w, res)
		return
	}
	if errors.Is(err, guard.ErrUnrecorded) && res.Code != 0 {
		// It is done, and this is its answer; only a retry may have to wait for recovery.
		e.log().Error("a request was done, and whether its answer is recorded is not known", "error", err)
		e.answer(w, res)
		return
	}
	var problem *Problem
	var unknown *idempotency.UnknownError
	var wrong *keys.WrongRegionError
	switch {
	case errors.As(err, &problem):
		e.Problem(w, *problem)
	case errors.Is(err, ErrNoKey):
		e.Problem(w, Problem{Code: CodeKeyMissing, Detail: "this operation needs the header " + HeaderKey +
			": a key of 1 to 255 printable ASCII characters, new for each intent and kept for its retries"})
	case errors.Is(err, keys.ErrOutsideWindow):
		e.Problem(w, Problem{Code: CodeKeyOutsideWindow, Detail: err.Error()})
	case errors.Is(err, idempotency.ErrInvalidKey):
		e.Problem(w, Problem{Code: CodeKeyInvalid, Detail: err.Error()})
	case errors.Is(err, idempotency.ErrInvalidCommand):
		e.Problem(w, Problem{Code: CodeBadRequest, Detail: err.Error()})
	case errors.Is(err, idempotency.ErrMismatch):
		e.mismatch(w, err)
	case errors.Is(err, idempotency.ErrInProgress):
		e.inProgress(w, err)
	case errors.Is(err, idempotency.ErrExpired):
		e.expired(w, err)
	case errors.As(err, &wrong):
		e.wrongRegion(w, wrong)
	case errors.As(err, &unknown):
		e.unknown(w, *unknown)
	case errors.Is(err, idempotency.ErrUnknown), errors.Is(err, store.ErrLeaseLost),
		errors.Is(err, guard.ErrUnrecorded):
		e.unknown(w, idempotency.UnknownError{})
	case class == idempotency.ClassUnknown: // nobody else has said why
		e.log().Error("whether a request was done cannot be told", "error", err)
		e.unknown(w, idempotency.UnknownError{})
	case class == idempotency.ClassRetryable, errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled):
		w.Header().Set("Retry-After", "1")
		e.log().Warn("a request was not finished", "error", err)
		e.Problem(w, Problem{Code: CodeTryAgain, Detail: "the request was not finished: repeat it with the same " +
			"Idempotency-Key"})
	default:
		e.log().Error("a request failed", "error", err)
		e.Problem(w, Problem{Code: CodeInternal, Detail: "something failed here; a repetition with the same " +
			"Idempotency-Key is done at most once"})
	}
}

func (e Edge) answer(w http.ResponseWriter, res idempotency.Result) {
	if reason := res.Header[headerNotKept]; len(reason) > 0 {
		e.Problem(w, Problem{
			Code: CodeNotKept, FirstStatus: res.Code, Failure: res.Failure, Resource: res.Resource,
			Detail: "the request was done, and its answer was not kept (" + reason[0] + ")",
		})
		return
	}
	if res.Code == 0 { // the work gave none
		res.Code = http.StatusNoContent
		if len(res.Body) > 0 {
			res.Code = http.StatusOK
		}
		if res.Failure != "" {
			if res.Replayed {
				w.Header().Set(HeaderReplayed, "true")
			}
			e.Problem(w, Problem{
				Code: CodeRefused, Failure: res.Failure, Resource: res.Resource,
				Detail: "the request was refused for good",
			})
			return
		}
	}
	if res.Code < 200 || res.Code > 599 {
		e.log().Error("a result has a code that is no HTTP status", "code", res.Code)
		e.Problem(w, Problem{Code: CodeInternal})
		return
	}
	h := w.Header()
	e.keep(h, res.Header)
	if e.Policy != "" {
		h.Set(HeaderPolicy, e.Policy)
	}
	if res.Replayed {
		h.Set(HeaderReplayed, "true")
		if e.OnReplay != nil {
			e.OnReplay(h, res)
		}
	}
	w.WriteHeader(res.Code)
	_, _ = w.Write(res.Body)
}

// mismatch tells what became of the first command, which is the same tenant's: a client that changed its mind after a
// time-out can then look for it. Its answer is never shown.
func (e Edge) mismatch(w http.ResponseWriter, err error) {
	p := Problem{Code: CodeKeyReused, Detail: "this Idempotency-Key belongs to a different request: use a new key " +
		"for a new intent"}
	var m *idempotency.MismatchError
	if errors.As(err, &m) {
		p.State, p.Resource = m.State, m.Resource
	}
	e.log().Warn("an idempotency key was used again with a different request")
	e.Problem(w, p)
}

func (e Edge) inProgress(w http.ResponseWriter, err error) {
	wait := cmp.Or(e.RetryInProgress, 2*time.Second)
	var p *idempotency.InProgressError
	if errors.As(err, &p) {
		wait = min(wait, p.RetryAfter)
	}
	retryAfter(w, wait)
	if e.StatusURL != "" {
		e.accepted(w, idempotency.InProgress, "")
		return
	}
	e.Problem(w, Problem{
		Code: CodeInProgress, State: idempotency.InProgress,
		Detail: "another request with this Idempotency-Key is being worked at: repeat this one, with the same key, a " +
			"little later",
	})
}

func (e Edge) unknown(w http.ResponseWriter, u idempotency.UnknownError) {
	detail := "nobody knows yet whether the request was done: repeat it with the same Idempotency-Key; a new key may " +
		"do it twice"
	wait := cmp.Or(e.RetryUnknown, 15*time.Second)
	if u.Stuck { // it takes a person, so the time is a guess
		detail = "nobody knows whether the request was done, and a person has to look; a new key may do it twice"
		wait = time.Hour
	}
	if e.StatusURL != "" || !u.Stuck { // by Retry-After a client tells this 202 from a success
		retryAfter(w, wait)
	}
	if e.StatusURL != "" {
		e.accepted(w, idempotency.Unknown, u.Stage)
		return
	}
	e.Problem(w, Problem{Code: CodeUnknown, State: idempotency.Unknown, Stage: u.Stage, Detail: detail})
}

func (e Edge) expired(w http.ResponseWriter, err error) {
	p := Problem{
		Code: CodeExpired, State: idempotency.Expired,
		Detail: "the request was finished, and its answer is no longer kept: look at the resource; for a new intent " +
			"use a new key",
	}
	var x *idempotency.ExpiredError
	if errors.As(err, &x) {
		p.FirstStatus, p.Failure, p.Resource = x.Code, x.Failure, x.Resource
	}
	e.Problem(w, p)
}

// retryAfter rounds up, and is at least a second: the header knows no less.
func retryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10))
}

func (e Edge) log() *slog.Logger {
	if e.Logger != nil {
		return e.Logger
	}
	return slog.Default()
}
