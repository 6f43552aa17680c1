package keys

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
)

// ErrWrongRegion: the key's home is another region, named by a *WrongRegionError. Nothing was looked up or recorded.
var ErrWrongRegion = errors.New("the idempotency key's home is another region")

// WrongRegionError is ErrWrongRegion with the key's home.
type WrongRegionError struct {
	Home string // region of the key
	Here string // region of this process
}

// Error names both regions.
func (e *WrongRegionError) Error() string {
	return fmt.Sprintf("%v: %s, not %s", ErrWrongRegion, e.Home, e.Here)
}

// Unwrap returns ErrWrongRegion.
func (e *WrongRegionError) Unwrap() error { return ErrWrongRegion }

// Regions maps keys to home regions: a store protects one region only, so only a key's home runs its request. All
// regions must have the same Known, TenantHome and Default, so that they find the same home.
//
// The home of a key is its tenant's, if that has one; else the region in the key (see InRegion); else the default.
type Regions struct {
	// Here is the region of this process. Required.
	Here string
	// Known has the names of all regions, including Here: a-z, 0-9 and '-', beginning with a letter. Required.
	Known []string
	// TenantHome returns a tenant's home, "" for a tenant without a single one. Nil: no tenant has one.
	TenantHome func(tenant string) string
	// Default is the home of keys without a region. Empty: such a key is refused with ErrInvalidKey.
	Default string
}

// InRegion returns a key with its home region: "eu1." and the value. The client or gateway that makes the key chooses
// the nearest region once; every retry goes to that region.
func InRegion(region, value string) string { return region + "." + value }

// Home returns the home of a key. An error is about the configuration, or matches ErrInvalidKey.
func (r Regions) Home(k idempotency.Key) (string, error) {
	if r.TenantHome != nil {
		if home := r.TenantHome(k.Tenant); home != "" {
			return home, r.checkKnown(home)
		}
	}
	// Keys without a region may have dots, too.
	if home, _, ok := strings.Cut(k.Value, "."); ok && slices.Contains(r.Known, home) {
		return home, nil
	}
	if r.Default == "" {
		return "", fmt.Errorf("%w: it has no region: want one of %s, a dot, and the key", idempotency.ErrInvalidKey,
			strings.Join(r.Known, ", "))
	}
	return r.Default, r.checkKnown(r.Default)
}

// Check returns nil if the key's home is Here, a *WrongRegionError if it is another region, or Home's error. Call it
// before the store.
func (r Regions) Check(k idempotency.Key) error {
	if err := cmp.Or(k.Check(), r.checkKnown(r.Here)); err != nil {
		return err
	}
	home, err := r.Home(k)
	if err == nil && home != r.Here {
		err = &WrongRegionError{Home: home, Here: r.Here}
	}
	return err
}

func (r Regions) checkKnown(region string) error {
	if !slices.Contains(r.Known, region) {
		return fmt.Errorf("idempotency: region %q is not one of %s", region, strings.Join(r.Known, ", "))
	}
	return nil
}
