package answers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// way is what may become of an answer.
type way struct {
	name  string
	spoil func(k kind, frame []byte) (spoilt []byte, ok bool) // not ok: this answer cannot be spoilt so
	wait  time.Duration                                       // the answer comes so late
	ends  bool                                                // and the connection ends behind it
	code  string                                              // the error code that it carries
}

// decode decodes an answer.
func decode(k kind, frame []byte) (kmsg.Response, error) {
	r := kmsg.ResponseForKey(k.key)
	if r == nil {
		return nil, fmt.Errorf("no response is known for %v", k)
	}
	r.SetVersion(k.version)
	return r, r.ReadFrom(frame[4+headSize(k, r):])
}

// headSize is the size of the correlation id, and of the tagged fields behind it.
func headSize(k kind, r kmsg.Response) int {
	if r.IsFlexible() && k.key != int16(kmsg.ApiVersions) {
		return 5
	}
	return 4
}

// encode encodes an answer with the head of the frame.
func encode(k kind, frame []byte, r kmsg.Response) []byte {
	return sized(r.AppendTo(slices.Clone(frame[:4+headSize(k, r)])))
}

// sized sets a frame's length.
func sized(frame []byte) []byte {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// place is a value in an answer: fields of structs, and -1 for the first element of an array.
type place []int

// in returns the value in a response; it is invalid if the response lacks it.
func (p place) in(r kmsg.Response) reflect.Value {
	v := reflect.ValueOf(r).Elem()
	for _, i := range p {
		switch {
		case i >= 0:
			v = v.Field(i)
		case v.Len() == 0:
			return reflect.Value{}
		default:
			v = v.Index(0)
		}
	}
	return v
}

// places returns every value of a response, with its name: error codes, other leaves, and arrays.
func places(r kmsg.Response) map[string]place {
	found := map[string]place{}
	var walk func(v reflect.Value, name string, at place)
	walk = func(v reflect.Value, name string, at place) {
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				f := v.Type().Field(i)
				if !f.IsExported() || f.Name == "Version" && len(at) == 0 || f.Name == "UnknownTags" {
					continue
				}
				walk(v.Field(i), strings.TrimPrefix(name+"."+f.Name, "."), append(slices.Clone(at), i))
			}
			return
		}
		found[name] = at
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8 && v.Len() > 0 {
			walk(v.Index(0), name+"[0]", append(slices.Clone(at), -1))
		}
	}
	walk(reflect.ValueOf(r).Elem(), "", nil)
	return found
}

// others returns the values that may stand in place of a value, with their names.
func others(v reflect.Value) map[string]func(reflect.Value) {
	to := map[string]func(reflect.Value){}
	switch v.Kind() {
	case reflect.Bool:
		to["flipped"] = func(v reflect.Value) { v.SetBool(!v.Bool()) }
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		most := int64(math.MaxInt64) >> (64 - v.Type().Bits())
		for name, n := range map[string]int64{"-1": -1, "0": 0, "the greatest": most, "the least": -most - 1} {
			to[name] = func(v reflect.Value) { v.SetInt(n) }
		}
		for name, n := range map[string]int64{"one more": 1, "one less": -1, "500 more": 500} {
			to[name] = func(v reflect.Value) { v.SetInt(v.Int() + n) }
		}
	case reflect.String:
		to["empty"] = func(v reflect.Value) { v.SetString("") }
		to["another"] = func(v reflect.Value) { v.SetString("another") }
	case reflect.Pointer:
		if v.Type().Elem().Kind() == reflect.String {
			to["null"] = func(v reflect.Value) { v.SetZero() }
			to["empty"] = func(v reflect.Value) { v.Set(reflect.ValueOf(new(string))) }
			to["another"] = func(v reflect.Value) { s := "another"; v.Set(reflect.ValueOf(&s)) }
		}
	case reflect.Array:
		to["zero"] = func(v reflect.Value) { v.SetZero() }
		to["another"] = func(v reflect.Value) { v.Index(v.Len() - 1).SetUint(v.Index(v.Len()-1).Uint() ^ 1) }
	case reflect.Slice:
		to["empty"] = func(v reflect.Value) { v.Set(reflect.MakeSlice(v.Type(), 0, 0)) }
		if v.Len() > 0 {
			to["without the last"] = func(v reflect.Value) { v.Set(v.Slice(0, v.Len()-1)) }
			to["twice"] = func(v reflect.Value) { v.Set(reflect.AppendSlice(v.Slice3(0, v.Len(), v.Len()), v)) }
		}
		if v.Len() > 1 {
			to["backwards"] = func(v reflect.Value) {
				c := reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()), v)
				for i := range c.Len() {
					c.Index(i).Set(v.Index(v.Len() - 1 - i))
				}
				v.Set(c)
			}
		}
		if v.Type().Elem().Kind() == reflect.Uint8 && v.Len() > 0 {
			for i := range 8 {
				to[fmt.Sprintf("with a flipped bit at %d/8", i)] = func(v reflect.Value) {
					b := bytes.Clone(v.Bytes())
					b[len(b)*i/8] ^= 1 << i
					v.SetBytes(b)
				}
			}
		}
	}
	return to
}

// contents are the ways to spoil what stands in an answer of this kind: each code in each place for one, and other
// values in each other place.
func contents(k kind, sample []byte, codes map[int16]string) (of []way, err error) {
	truth, err := decode(k, sample)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(encode(k, sample, truth), sample) {
		return nil, fmt.Errorf("%v: the answer is another once it is encoded again", k)
	}
	found := places(truth)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		at := found[name]
		changes, isCode := others(at.in(truth)), strings.HasSuffix(name, "ErrorCode")
		if isCode {
			clear(changes)
			for code := range codes {
				changes[fmt.Sprintf("%d", code)] = func(v reflect.Value) { v.SetInt(int64(code)) }
			}
		}
		for _, change := range slices.Sorted(maps.Keys(changes)) {
			w := way{name: name + " is " + change, spoil: func(k kind, frame []byte) ([]byte, bool) {
				r, err := decode(k, frame)
				if err != nil {
					return nil, false
				}
				v := at.in(r)
				if !v.IsValid() || v.Kind() == reflect.Slice && v.Len() == 0 && change != "empty" {
					return nil, false
				}
				changes[change](v)
				spoilt := encode(k, frame, r)
				return spoilt, !bytes.Equal(spoilt, frame)
			}}
			if isCode {
				var code int16
				_, _ = fmt.Sscan(change, &code)
				w.code = codes[code]
				w.name += " " + w.code
			}
			if _, ok := w.spoil(k, sample); ok { // else the version lacks it, or it is the truth
				of = append(of, w)
			}
		}
	}
	return of, nil
}

const late = 12 * time.Second // than any time-out of a client that is not for a rebalance

// frames are the ways to spoil an answer whatever stands in it.
func frames() (of []way) {
	add := func(name string, spoil func(frame []byte) []byte) *way {
		of = append(of, way{name: name, spoil: func(_ kind, frame []byte) ([]byte, bool) { return spoil(frame), true }})
		return &of[len(of)-1]
	}
	same := func(f []byte) []byte { return f }
	add("no answer", func([]byte) []byte { return nil }).ends = true
	add("late", same).wait = late
	add("0.5 s late", same).wait = 500 * time.Millisecond
	add("twice", func(f []byte) []byte { return append(f, f...) })
	add("and the end of the connection", same).ends = true
	add("of another request", func(f []byte) []byte { f[7] ^= 0x55; return f })
	add("without a body", func(f []byte) []byte { return sized(f[:8]) })
	add("without anything", func(f []byte) []byte { return sized(f[:4]) })
	for size, n := range map[string]uint32{
		"negative": math.MaxUint32, "huge": math.MaxInt32, "2": 2,
	} {
		add("of size "+size, func(f []byte) []byte { binary.BigEndian.PutUint32(f, n); return f }).ends = true
	}
	add("text", func([]byte) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }).ends = true
	for i := range 8 {
		at := func(f []byte) int { return 8 + (len(f)-8)*i/8 }
		if i > 0 {
			add(fmt.Sprintf("cut at %d/8", i), func(f []byte) []byte { return sized(f[:at(f)]) })
			add(fmt.Sprintf("that ends at %d/8", i), func(f []byte) []byte { return f[:at(f)] }).ends = true
		}
		add(fmt.Sprintf("with a flipped bit at %d/8", i), func(f []byte) []byte {
			if n := at(f); n < len(f) {
				f[n] ^= 1 << i
			}
			return f
		})
	}
	add("cut by a byte", func(f []byte) []byte { return sized(f[:len(f)-1]) })
	add("with more behind it", func(f []byte) []byte { return sized(append(f, make([]byte, 7)...)) })
	return of
}
