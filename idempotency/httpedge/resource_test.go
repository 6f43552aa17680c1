package httpedge_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
)

// thing is a resource that changes after it was made.
type thing struct {
	name    string
	locked  bool
	deleted bool // softly
}

type things map[string]*thing

// show renders a thing in the schema that the record was made with, as it is now.
func (s things) show(_ context.Context, res idempotency.Result) (idempotency.Result, error) {
	one := s[res.Resource]
	switch {
	case one == nil:
		return idempotency.Result{}, httpedge.NotFound("the thing is not there")
	case one.deleted:
		return idempotency.Result{}, httpedge.Gone("the thing was deleted")
	case one.locked:
		return idempotency.Result{}, httpedge.Changed("the thing is locked")
	}
	switch res.Schema {
	case 1:
		return httpedge.JSON(0, map[string]string{"title": one.name})
	case 2:
		return httpedge.JSON(0, map[string]string{"name": one.name})
	}
	return idempotency.Result{}, errors.New("no such schema: " + strconv.Itoa(res.Schema))
}

// TestResource_Strict: the stored body is the answer, whatever the resource's state.
func TestResource_Strict(t *testing.T) {
	t.Parallel()
	res, _ := httpedge.JSON(201, map[string]string{"name": "x"})
	res.Replayed, res.Resource = true, "1"
	if w := write(httpedge.Edge{}, res, nil); w.Code != 201 || w.Body.String() != "{\"name\":\"x\"}\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestResource_StateAware, and soft delete: the answer is rendered from the resource's current state.
func TestResource_StateAware(t *testing.T) {
	t.Parallel()
	all := things{"1": {name: "x"}, "2": {deleted: true}, "3": {locked: true}}
	for resource, want := range map[string]struct {
		status int
		code   httpedge.Code
	}{
		"1": {201, ""}, "2": {410, httpedge.CodeResourceGone}, "3": {409, httpedge.CodeResourceChanged},
		"4": {404, httpedge.CodeResourceNotFound},
	} {
		stored := idempotency.Result{Code: 201, Resource: resource, Schema: 2, Replayed: true}
		res, err := httpedge.Render(t.Context(), stored, nil, all.show)
		w := write(httpedge.Edge{}, res, err)
		if w.Code != want.status {
			t.Errorf("%s: %d %s", resource, w.Code, w.Body)
		}
		if want.code != "" {
			// It was done, whatever became of it: a client must not take it for a refusal.
			if p := problem(t, w); p.Code != want.code || p.FirstStatus != 201 {
				t.Errorf("%s: %+v", resource, p)
			}
		} else if w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %v", resource, w.Header())
		}
	}
}

// TestResource_SchemaVersion: a retry after a release gets the answer's format of its first attempt.
func TestResource_SchemaVersion(t *testing.T) {
	t.Parallel()
	all := things{"1": {name: "x"}}
	for schema, want := range map[int]string{1: "{\"title\":\"x\"}\n", 2: "{\"name\":\"x\"}\n"} {
		res, err := httpedge.Render(t.Context(), idempotency.Result{Code: 201, Resource: "1", Schema: schema}, nil,
			all.show)
		if err != nil || string(res.Body) != want || res.Code != 201 || res.Schema != schema || res.Resource != "1" {
			t.Errorf("schema %d: %+v, %v", schema, res, err)
		}
	}
	if w := func() int {
		res, err := httpedge.Render(t.Context(), idempotency.Result{Code: 201, Resource: "1", Schema: 3}, nil, all.show)
		return write(httpedge.Edge{}, res, err).Code
	}(); w != 500 {
		t.Errorf("an unknown schema: %d", w)
	}
}

// TestRender_Unchanged: refusals, errors and first answers with a body are returned unchanged.
func TestRender_Unchanged(t *testing.T) {
	t.Parallel()
	never := func(context.Context, idempotency.Result) (idempotency.Result, error) {
		t.Error("shown")
		return idempotency.Result{}, nil
	}
	for i, res := range []idempotency.Result{
		{Code: 402, Failure: "declined", Resource: "1", Replayed: true},
		{Code: 201, Replayed: true},
		{Code: 201, Resource: "1", Body: []byte("b")},
	} {
		if got, err := httpedge.Render(t.Context(), res, nil, never); err != nil || fmt.Sprint(got) != fmt.Sprint(res) {
			t.Errorf("%d: %+v, %v", i, got, err)
		}
	}
	if _, err := httpedge.Render(t.Context(), idempotency.Result{Resource: "1"}, idempotency.ErrMismatch,
		never); !errors.Is(err, idempotency.ErrMismatch) {
		t.Error(err)
	}
}
