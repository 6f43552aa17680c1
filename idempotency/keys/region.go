package keys

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
)

// ErrWrongRegion: the key lives in another region, whose store remembers it. Nothing was looked up or recorded here. A
// *WrongRegionError says which.
var ErrWrongRegion = errors.New("the idempotency key lives in another region")

// WrongRegionError is ErrWrongRegion with the region to ask.
type WrongRegionError struct {
	Home string // where the key lives
	Here string // who was asked
}

func (e *WrongRegionError) Error() string {
	return fmt.Sprintf("%v: %s, and this is %s", ErrWrongRegion, e.Home, e.Here)
}

func (e *WrongRegionError) Unwrap() error { return ErrWrongRegion }

// Regions says where keys live: a store protects its own region only, so each key has one home, and only that runs its
// request. All regions must have the same Known, TenantHome and Default, for the home must be the same whoever is
// asked.
//
// The home of a key is its tenant's, if that has one; else the one that the key names (see InRegion); else the default.
type Regions struct {
	// Here is the region of this process. Required.
	Here string
	// Known are the names of all regions, Here among them: of a-z, 0-9 and '-', beginning with a letter. Required.
	Known []string
	// TenantHome says where a tenant lives, and "" for one that lives in no single region. Nil: none does.
	TenantHome func(tenant string) string
	// Default is the home of keys that name no region. Empty: such a key is refused with ErrInvalidKey.
	Default string
}

// InRegion returns a key that names its home: "eu1." and the value. Whoever makes the keys, a client or a gateway, asks
// for the nearest region once, when it makes the key, and every retry goes to that one, wherever it enters.
func InRegion(region, value string) string { return region + "." + value }

// Home returns the region in which a key lives. The error is about the configuration, or matches ErrInvalidKey.
func (r Regions) Home(k idempotency.Key) (string, error) {
	if r.TenantHome != nil {
		if home := r.TenantHome(k.Tenant); home != "" {
			return home, r.known(home)
		}
	}
	// What stands before the first dot is a region only if it is one's name: other keys have dots, too.
	if home, _, named := strings.Cut(k.Value, "."); named && slices.Contains(r.Known, home) {
		return home, nil
	}
	if r.Default == "" {
		return "", fmt.Errorf("%w: it names no region: want one of %s, a dot, and the key", idempotency.ErrInvalidKey,
			strings.Join(r.Known, ", "))
	}
	return r.Default, r.known(r.Default)
}

// Check returns nil when the key lives here, a *WrongRegionError when it lives elsewhere, or Home's error. Ask it
// before anything is looked up.
func (r Regions) Check(k idempotency.Key) error {
	if err := cmp.Or(k.Check(), r.known(r.Here)); err != nil {
		return err
	}
	home, err := r.Home(k)
	if err == nil && home != r.Here {
		err = &WrongRegionError{Home: home, Here: r.Here}
	}
	return err
}

func (r Regions) known(region string) error {
	if !slices.Contains(r.Known, region) {
		return fmt.Errorf("idempotency: region %q is none of %s", region, strings.Join(r.Known, ", "))
	}
	return nil
}
