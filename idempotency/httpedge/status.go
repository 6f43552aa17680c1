package httpedge

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// Operation is the JSON of an operation-status resource.
type Operation struct {
	State idempotency.State `json:"state"`
	// StatusURL is this resource's URL.
	StatusURL string `json:"status_url,omitempty"`
	// Status is the HTTP status of the answer, once the request is finished.
	Status   int    `json:"status,omitempty"`
	Failure  string `json:"failure,omitempty"`
	Resource string `json:"resource,omitempty"`
	// NeedsPerson: recovery gave up.
	NeedsPerson bool `json:"needs_person,omitempty"`
}

func (e Edge) accepted(w http.ResponseWriter, state idempotency.State) {
	w.Header().Set("Location", e.StatusURL)
	e.send(w, http.StatusAccepted, "application/json", Operation{State: state, StatusURL: e.StatusURL})
}

// StatusHandler serves the operation-status resource: 200 with an Operation, and with Retry-After until it is finished,
// or 404. get is a Store's Get. key returns the key that a request is about, with the authenticated tenant, so that
// other tenants' keys are not found; its error is answered by Write. The answer's body is not shown: a retry gets it.
func (e Edge) StatusHandler(get func(context.Context, idempotency.Key) (store.Record, bool, error),
	key func(*http.Request) (idempotency.Key, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		if err == nil {
			err = k.Check()
		}
		if err != nil {
			e.Write(w, idempotency.Result{}, err)
			return
		}
		rec, found, err := get(r.Context(), k)
		switch {
		case err != nil:
			e.Write(w, idempotency.Result{}, outcome.Retryable(err)) // reading has no effect
			return
		case !found:
			e.Problem(w, *NotFound("there is no request with this key"))
			return
		}
		op := Operation{
			State: rec.State, Status: rec.Result.Code, Failure: rec.Result.Failure, Resource: rec.Result.Resource,
			NeedsPerson: rec.Stuck,
		}
		switch {
		case rec.State == idempotency.InProgress:
			retryAfter(w, max(0, min(cmp.Or(e.RetryInProgress, 2*time.Second), rec.LeaseLeft)))
		case rec.State == idempotency.Unknown && !rec.Stuck:
			retryAfter(w, cmp.Or(e.RetryUnknown, 15*time.Second))
		}
		e.send(w, http.StatusOK, "application/json", op)
	})
}
