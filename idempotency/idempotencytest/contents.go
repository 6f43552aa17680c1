package idempotencytest

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// contents are the tests on stored data.
func contents() []testCase {
	return []testCase{
		{"Body_AnyBytes", false, bodyAnyBytes},
		{"Body_Large", false, bodyLarge},
		{"Result_Fields", false, resultFields},
		{"Input_NilAndEmpty", false, inputNilAndEmpty},
		{"Key_PartsAreSeparate", false, keyPartsAreSeparate},
		{"Key_AnyPrintableByte", false, keyAnyPrintableByte},
		{"Memory_IsNotShared", false, memoryIsNotShared},
	}
}

func allBytes() []byte {
	b := make([]byte, 512)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func bodyAnyBytes(t *testing.T, s *suite) {
	for name, body := range map[string][]byte{
		"nil": nil, "empty": {}, "every byte": allBytes(),
		"no UTF-8": {0xff, 0xfe, 0}, "text": []byte("\"ž\"\\u0000"),
	} {
		r := s.fresh()
		res := result("")
		res.Body = body
		s.finish(t, s.claimNew(t, r), res, idempotency.Retention{})
		for _, rec := range []store.Record{s.get(t, r.Key), s.claim(t, r, rand.Text(), long, false).Record} {
			if got := rec.Result.Body; !bytes.Equal(got, body) || (got == nil) != (body == nil) {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
}

func bodyLarge(t *testing.T, s *suite) {
	body := bytes.Repeat(allBytes(), min(s.Features.MaxBody, 1<<20)/512)
	r := s.fresh()
	res := result("")
	res.Body = body
	s.finish(t, s.claimNew(t, r), res, idempotency.Retention{})
	if got := s.get(t, r.Key).Result.Body; !bytes.Equal(got, body) {
		t.Errorf("%d bytes, want %d", len(got), len(body))
	}
}

func resultFields(t *testing.T, s *suite) {
	for _, res := range []idempotency.Result{
		{},
		{Code: 204},
		{Code: -1, Schema: 1 << 30},
		{Code: 201, Header: map[string][]string{"X": {""}, "Y": {"a", "a", "ž\t\"{}"}}, Resource: "payments/ž'\\\"/1"},
		{Code: 402, Failure: "card_declined", Body: []byte("no")},
	} {
		r := s.fresh()
		res.Replayed = true // a store does not keep it
		s.finish(t, s.claimNew(t, r), res, idempotency.Retention{})
		rec := s.get(t, r.Key)
		want := idempotency.Completed
		if res.Failure != "" {
			want = idempotency.FailedReplayable
		}
		if rec.State != want || !sameResult(rec.Result, res) || rec.Result.Replayed || rec.Result.At.IsZero() {
			t.Errorf("%+v, want %+v", rec.Result, res)
		}
	}
}

// inputNilAndEmpty: an empty input is distinct from none.
func inputNilAndEmpty(t *testing.T, s *suite) {
	for name, input := range map[string][]byte{"nil": nil, "empty": {}, "every byte": allBytes()} {
		r := s.fresh()
		r.Input = input
		s.claimNew(t, r)
		if got := s.get(t, r.Key).Input; !bytes.Equal(got, input) || (got == nil) != (input == nil) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// keyPartsAreSeparate: keys whose joined parts are equal are different keys.
func keyPartsAreSeparate(t *testing.T, s *suite) {
	keys := []idempotency.Key{
		{Tenant: "", Operation: "o", Value: "v"},
		{Tenant: "t", Operation: "o", Value: "v"},
		{Tenant: "u", Operation: "o", Value: "v"},
		{Tenant: "t", Operation: "p", Value: "v"},
		{Tenant: "t", Operation: "o", Value: "V"},
		{Tenant: "t", Operation: "o", Value: "v "},
		{Tenant: "to", Operation: "o", Value: "v"},
	}
	for _, sep := range []string{":", "/", "|", "#", "{", " ", "-", "_", "%", ".", ","} {
		keys = append(keys,
			idempotency.Key{Tenant: "a" + sep + "b", Operation: "c", Value: "d"},
			idempotency.Key{Tenant: "a", Operation: "b" + sep + "c", Value: "d"},
			idempotency.Key{Tenant: "a", Operation: "b", Value: "c" + sep + "d"},
			idempotency.Key{Tenant: "", Operation: "a" + sep + "b" + sep + "c", Value: "d"})
	}
	part := rand.Text()
	for _, k := range keys {
		k.Value += part // the store may be shared
		r := s.fresh()
		r.Key = k
		s.finish(t, s.claimNew(t, r), result(k.Tenant+"\x00"+k.Operation+"\x00"+k.Value), idempotency.Retention{})
	}
	for _, k := range keys {
		k.Value += part
		if got := s.get(t, k).Result.Body; string(got) != k.Tenant+"\x00"+k.Operation+"\x00"+k.Value {
			t.Errorf("%+v: %q", k, got)
		}
	}
}

func keyAnyPrintableByte(t *testing.T, s *suite) {
	var all strings.Builder
	for b := byte(0x20); b <= 0x7e; b++ {
		all.WriteByte(b)
	}
	for _, k := range []idempotency.Key{
		{Tenant: all.String(), Operation: all.String(), Value: all.String() + rand.Text()},
		{
			Tenant: strings.Repeat("t", idempotency.MaxKey), Operation: strings.Repeat("o", idempotency.MaxKey),
			Value: rand.Text() + strings.Repeat("v", idempotency.MaxKey-26),
		},
	} {
		r := s.fresh()
		r.Key = k
		l := s.claimNew(t, r)
		if rec := s.get(t, k); rec.Fence != l.Fence {
			t.Errorf("%+v", rec)
		}
		s.finish(t, l, result("x"), idempotency.Retention{})
	}
}

// memoryIsNotShared: a caller's later changes of its bytes do not reach the store or another reader.
func memoryIsNotShared(t *testing.T, s *suite) {
	r := s.fresh()
	input := string(r.Input)
	l := s.claimNew(t, r)
	clear(r.Input)
	p := store.Progress{
		Stage: idempotency.LocalCreated,
		Steps: []store.Step{{Name: "a", State: store.StepDone, Data: []byte("data")}},
	}
	ok(t, "save", s.Store.Save(t.Context(), l, p))
	p.Steps[0].Data[0], p.Steps[0].Name = 0, "b"
	rec := s.get(t, r.Key)
	if string(rec.Input) != input || rec.Progress.Steps[0].Name != "a" || string(rec.Progress.Steps[0].Data) != "data" {
		t.Errorf("%+v", rec)
	}
	clear(rec.Input)
	rec.Progress.Steps[0].Data[0] = 0
	if rec := s.get(t, r.Key); string(rec.Input) != input || string(rec.Progress.Steps[0].Data) != "data" {
		t.Errorf("%+v", rec)
	}
	res := result("body")
	s.finish(t, l, res, idempotency.Retention{})
	spoil := func(res idempotency.Result) {
		clear(res.Body)
		res.Header["Link"][0] = "spoilt"
		delete(res.Header, "Content-Type")
	}
	spoil(res)
	spoil(s.get(t, r.Key).Result)
	if rec := s.get(t, r.Key); !sameResult(rec.Result, result("body")) {
		t.Errorf("%+v", rec.Result)
	}
}
