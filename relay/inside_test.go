//lint:file-ignore U1000 the fields are those of the product

package relay

import (
	"fmt"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
)

// laneTable and laneState have the fields of lanes.Table and of its lanes. Models use them to put a relay into every
// state, and to read the whole state; the product has no API for that.
type laneTable struct {
	mu               sync.Mutex
	owned            map[int16]*laneState
	first            lanes.Feed
	takes            int
	epoch            string
	reads            int
	ids              string
	decided, reached int64
	except           []string
	since            map[string]int64
	expected         bool
	limit, far       int64
	falls            int
}

type laneState struct {
	fence                            int64
	deadline                         time.Time
	next, end, floor, reach, settled int64
	feed                             lanes.Feed
	read                             int
	fresh, due                       bool
	dueFail                          int
	ready                            bool
	woken, busy, doubt, leaving      bool
	parked, releasing                bool
	groups                           delivery.Groups
	turn, strikes                    int
	rest, dueRest                    time.Time
	taken                            int
	bulk                             bool
	pace                             lanes.Pace
	given                            int
	stood                            time.Time
	stoodAt                          int
}

// inside gives access to a table's fields.
func inside(t *lanes.Table) *laneTable { return (*laneTable)(unsafe.Pointer(t)) }

// table returns the table of these fields.
func (t *laneTable) table() *lanes.Table { return (*lanes.Table)(unsafe.Pointer(t)) }

// list returns the lanes for which want is true.
func (t *laneTable) list(want func(l *laneState) bool) (found []int16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for lane, l := range t.owned {
		if want(l) {
			found = append(found, lane)
		}
	}
	return found
}

func (l *laneState) isReady() bool { return l.ready }

func init() { sameFields(reflect.TypeFor[lanes.Table](), reflect.TypeFor[laneTable]()) }

// sameFields panics if two types differ in their memory or in the names of their fields.
func sameFields(product, test reflect.Type) {
	switch {
	case product == test:
	case product.Kind() != test.Kind() || product.Size() != test.Size():
		panic(fmt.Sprintf("%v differs from %v: apply the product's change to it", test, product))
	case product.Kind() == reflect.Map || product.Kind() == reflect.Pointer:
		sameFields(product.Elem(), test.Elem())
	case product.Kind() != reflect.Struct || product.NumField() != test.NumField():
		panic(fmt.Sprintf("%v differs from %v: apply the product's change to it", test, product))
	default:
		for i := range product.NumField() {
			if p, t := product.Field(i), test.Field(i); p.Name != t.Name || p.Offset != t.Offset {
				panic(fmt.Sprintf("%v.%s is not %v.%s: apply the product's change to it", test, t.Name, product,
					p.Name))
			}
			sameFields(product.Field(i).Type, test.Field(i).Type)
		}
	}
}
