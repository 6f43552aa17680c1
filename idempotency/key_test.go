package idempotency_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
)

func TestKey_Check(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", idempotency.MaxKey)
	for _, good := range []idempotency.Key{
		{Operation: "o", Value: "v"},
		{Tenant: long, Operation: long, Value: long},
		{Tenant: " ~", Operation: "a b", Value: `"'{}\`},
	} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []idempotency.Key{
		{},
		{Operation: "o"},
		{Value: "v"},
		{Tenant: long + "k", Operation: "o", Value: "v"},
		{Operation: long + "k", Value: "v"},
		{Operation: "o", Value: long + "k"},
		{Operation: "o", Value: "secret\x00"},
		{Operation: "o", Value: "secret\n"},
		{Operation: "o", Value: "secret\x7f"},
		{Operation: "o", Value: "secreté"},
		{Operation: "o", Value: "secret\xff"},
		{Operation: "o\t", Value: "v"},
		{Tenant: "\r", Operation: "o", Value: "v"},
	} {
		err := bad.Check()
		if !errors.Is(err, idempotency.ErrInvalidKey) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
