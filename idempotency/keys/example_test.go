package keys_test

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/keys"
)

// Keys that name their time are refused when they are older than what is remembered of them.
func ExampleWindow() {
	w := keys.Window{Age: 48 * time.Hour}
	fmt.Println(w.CheckV7(keys.NewV7()))
	fmt.Println(w.CheckV7("0190a5e0-0000-7000-8000-000000000000"))
	// Output:
	// <nil>
	// invalid idempotency key: idempotency key outside the window in which keys are accepted: it is older than 48h0m0s
}

// The same intent has the same key, without anybody keeping it.
func ExampleIntent() {
	invoices := uuid.MustParse("5f3c7a52-6d41-4b0e-9b63-0d8f6a1c2e77")
	once := keys.Intent(invoices, 1, "invoice", "2026-07", "customer 17")
	again := keys.Intent(invoices, 1, "invoice", "2026-07", "customer 17")
	august := keys.Intent(invoices, 1, "invoice", "2026-08", "customer 17")
	fmt.Println(once == again, once == august)
	// Output: true false
}

// A takes 100, B takes 101, and B is done first.
func ExampleWatermark() {
	w := keys.Watermark{Low: 99}
	_, _ = w.Add(101, 1000)
	fmt.Println(w.Has(100), w.Has(101), w)
	_, _ = w.Add(100, 1000)
	fmt.Println(w.Has(100), w)
	// Output:
	// false true {99 [101]}
	// true {101 []}
}

// homes are the tenants' home regions.
type homes map[string]string

func (h homes) Home(tenant string) string { return h[tenant] }

// A tenant's home comes before the region that a key names, and that before the default.
func ExampleRegions() {
	tenants := homes{"acme": "us1"}
	regions := keys.Regions{
		Here:       "us1",
		Known:      []string{"eu1", "us1"},
		TenantHome: tenants.Home, // nil: no tenant has one
		Default:    "eu1",        // empty: a key that names no region is refused with 400
	}
	for _, k := range []idempotency.Key{
		{Tenant: "acme", Value: "eu1.4711"}, {Value: keys.InRegion("us1", "4711")}, {Value: "4711"},
	} {
		home, err := regions.Home(k)
		fmt.Println(home, err)
	}
	// Output:
	// us1 <nil>
	// us1 <nil>
	// eu1 <nil>
}
