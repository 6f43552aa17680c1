package keys_test

import (
	"errors"
	"testing"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/keys"
)

func TestRegions_Home(t *testing.T) {
	t.Parallel()
	all := keys.Regions{
		Here: "us1", Known: []string{"eu1", "us1"}, Default: "us1",
		TenantHome: func(tenant string) string {
			return map[string]string{"bavaria": "eu1", "atlantis": "sea9"}[tenant]
		},
	}
	strict := all
	strict.Default = ""
	for _, c := range []struct {
		of            keys.Regions
		tenant, value string
		home          string
		err           error
	}{
		{all, "", "plain", "us1", nil},
		{all, "", "eu1.abc", "eu1", nil},
		{all, "", keys.InRegion("us1", "abc"), "us1", nil},
		{all, "", "eu2.abc", "us1", nil}, // a dot makes no region
		{all, "", "eu1", "us1", nil},
		{all, "bavaria", "us1.abc", "eu1", nil}, // the tenant's home wins over what a client claims
		{all, "ohio", "eu1.abc", "eu1", nil},
		{strict, "", "plain", "", idempotency.ErrInvalidKey},
		{strict, "", "eu1.abc", "eu1", nil},
	} {
		k := idempotency.Key{Tenant: c.tenant, Operation: "o", Value: c.value}
		home, err := c.of.Home(k)
		if home != c.home || !errors.Is(err, c.err) {
			t.Errorf("%+v: %q, %v", k, home, err)
		}
		if c.err != nil {
			continue
		}
		err = c.of.Check(k)
		var wrong *keys.WrongRegionError
		if errors.As(err, &wrong) != (c.home != "us1") || wrong != nil &&
			(wrong.Home != c.home || !errors.Is(err, keys.ErrWrongRegion)) {
			t.Errorf("%+v: %v", k, err)
		}
	}
	for name, r := range map[string]keys.Regions{
		"nothing": {}, "an unknown here": {Here: "x", Known: []string{"eu1"}, Default: "eu1"},
		"an unknown default": {Here: "eu1", Known: []string{"eu1"}, Default: "x"},
	} {
		if err := r.Check(idempotency.Key{Operation: "o", Value: "v"}); err == nil ||
			errors.Is(err, keys.ErrWrongRegion) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := all.Check(idempotency.Key{Tenant: "atlantis", Operation: "o", Value: "v"}); err == nil ||
		errors.Is(err, keys.ErrWrongRegion) {
		t.Errorf("a tenant of no region: %v", err)
	}
	if err := all.Check(idempotency.Key{Operation: "o", Value: "\n"}); !errors.Is(err, idempotency.ErrInvalidKey) {
		t.Errorf("an invalid key: %v", err)
	}
}
