package idempotency_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/effectonce/effectonce/idempotency"
)

type payment struct {
	Account  string            `json:"account"`
	Amount   int64             `json:"amount"`
	Currency string            `json:"currency,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Token    string            `json:"token,omitempty"`
	Key      string            `json:"-"`
}

var paymentKey = idempotency.Key{Tenant: "t", Operation: "payment.create", Value: "k"}

func requestFor(t *testing.T, f idempotency.Fingerprinter, command any) idempotency.Request {
	t.Helper()
	r, err := f.Request(paymentKey, command)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFingerprint_IsStable: records keep fingerprints.
func TestFingerprint_IsStable(t *testing.T) {
	t.Parallel()
	p := payment{Account: "ž<1>", Amount: math.MaxInt64, Labels: map[string]string{
		"b": "\x00", "a": "\u2028", "ﬀ": "",
		"😀": "",
	}}
	got, err := idempotency.Canonical(p)
	if want := `{"account":"ž<1>","amount":"\u00009223372036854775807e0","labels":{"a":"` + "\u2028" +
		`","b":"\u0000\u0000","😀":"","ﬀ":""}}`; err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	for _, c := range []struct {
		f    idempotency.Fingerprinter
		want string
	}{
		{idempotency.Fingerprinter{}, "65223e76c9d81404144aade3c9952a1f93355d982f5e0285d310e283fc5acfc5"},
		{
			idempotency.Fingerprinter{Secret: []byte("secret")},
			"3bcd286bcfe7e4061a8b3aec5aa735c7dcade09c3117518ed585fc2a234f2986",
		},
	} {
		sum := requestFor(t, c.f, p).Fingerprint
		if got := hex.EncodeToString(sum.Sum[:]); got != c.want || sum.Version != 1 {
			t.Errorf("version %d: %s", sum.Version, got)
		}
	}
}

// TestCanonical_RFC8785 is the example of the RFC's section 3.2, in which a float64 represents all numbers.
func TestCanonical_RFC8785(t *testing.T) {
	t.Parallel()
	in := json.RawMessage(`{ "numbers": [333333333.3333333, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
		"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false] }`)
	const want = `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`
	if got, err := idempotency.Canonical(in); err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

// TestCanonical_Pairs: pairs of equal commands and pairs of different ones.
func TestCanonical_Pairs(t *testing.T) {
	t.Parallel()
	raw := func(s string) any { return json.RawMessage(s) }
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		why  string
		a, b any
		same bool
	}{
		{"order and white space", raw(`{"a":1,"b":[1,2]}`), raw("{ \"b\" :[1, 2],\n\"a\":1}"), true},
		{"spelling of numbers", raw(`[1,100,0,0.5]`), raw(`[1.0,1e2,-0.0,5E-1]`), true},
		{"spelling of texts", raw(`"\u0041\/\u00e9"`), raw(`"A/é"`), true},
		{"order of an array", raw(`[1,2]`), raw(`[2,1]`), false},
		{"number and text", raw(`1`), raw(`"1"`), false},
		{"case", raw(`"a"`), raw(`"A"`), false},
		{"white space within a text", raw(`"a "`), raw(`"a"`), false},
		{"normal forms of Unicode", "\u00e9", "e\u0301", false},
		{"int64 beyond 2^53", int64(9007199254740993), int64(9007199254740992), false},
		{"int64 beyond 2^53 and its digits", int64(9007199254740993), "9007199254740993", false},
		{"a text like a marked number", raw(`9007199254740993`), "\x009007199254740993e0", false},
		{"texts that begin with NUL", "\x00a", "\x00\x00a", false},
		{"big integers", new(big.Int).Lsh(big.NewInt(1), 100), new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 100),
			big.NewInt(1)), false},
		{"two spellings of one big number", raw(`9007199254740993`), raw(`90071992547409930e-1`), true},
		{"beyond a float64", raw(`1e400`), raw(`1e401`), false},
		{"below a float64", raw(`1e-400`), raw(`0`), false},
		{"digits beyond a float64", raw(`0.1`), raw(`0.1000000000000000055`), false},
		{"floats that are no decimals", math.Nextafter(0.3, 1), 0.3, false},
		{"float32 and float64 of one decimal", float32(0.1), 0.1, true},
		{"an instant in two zones", at, at.In(time.FixedZone("x", 3600)), false},
		{"an instant in two zones, pinned", at, at.In(time.FixedZone("x", 3600)).UTC(), true},
		{"nanoseconds", at, at.Add(1), false},
		{"nil and empty", []string(nil), []string{}, false},
		{"absent and zero", raw(`{}`), raw(`{"a":0}`), false},
		{"null and absent", raw(`{"a":null}`), raw(`{}`), false},
		{"omitempty", payment{Account: "a"}, payment{Account: "a", Labels: map[string]string{}}, true},
		{"a field that is left out", payment{Key: "a"}, payment{Key: "b"}, true},
	} {
		a, err := idempotency.Canonical(c.a)
		b, err2 := idempotency.Canonical(c.b)
		if err != nil || err2 != nil || (string(a) == string(b)) != c.same {
			t.Errorf("%s: %s and %s, %v, %v; want the same: %v", c.why, a, b, err, err2, c.same)
		}
	}
}

func TestCanonical_Refuses(t *testing.T) {
	t.Parallel()
	for why, command := range map[string]any{
		"NaN": math.NaN(), "infinity": math.Inf(1), "no JSON": make(chan int), "a text that is not UTF-8": "secret\xff",
		"a name that is not UTF-8": map[string]int{"secret\xff": 1},
		"a member twice":           json.RawMessage(`{"secret":1,"secret":2}`),
		"half a surrogate":         json.RawMessage(`"secret\ud800"`),
		"what was lost, escaped":   json.RawMessage(`"secret\uFFFD"`), "what was lost": "secret\ufffd",
		"raw bytes that are not UTF-8": json.RawMessage("\"secret\xff\""),
		"an exponent out of the world": json.RawMessage(`1e1000001`),
		"an exponent that is long":     json.RawMessage("1e" + strings.Repeat("9", 1000)),
	} {
		got, err := idempotency.Canonical(command)
		if err == nil {
			t.Errorf("%s: %s", why, got)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error repeats the command: %v", why, err)
		}
	}
	if _, err := idempotency.Canonical(`\ufffd`); err != nil {
		t.Errorf("a backslash and letters are a text: %v", err)
	}
	// both are read as U+FFFD, so that nobody can tell them apart
	for _, half := range []string{`"secret\ud800"`, `"secret\udfff"`} {
		var text string
		if err := json.Unmarshal([]byte(half), &text); err != nil {
			t.Fatal(err)
		}
		if _, err := idempotency.NewRequest(paymentKey, text); !errors.Is(err, idempotency.ErrInvalidCommand) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", half, err)
		}
	}
}

func TestFingerprinter_Omit(t *testing.T) {
	t.Parallel()
	f := idempotency.Fingerprinter{Omit: []string{"token", "absent"}, KeepInput: true}
	a, b := requestFor(t, f, payment{Account: "a", Amount: math.MaxInt64, Token: "one"}),
		requestFor(t, f, payment{Account: "a", Amount: math.MaxInt64, Token: "two"})
	if a.Fingerprint != b.Fingerprint {
		t.Error("a credential changes the fingerprint")
	}
	if a.Fingerprint == requestFor(t, f, payment{Account: "a", Amount: math.MaxInt64 - 1}).Fingerprint {
		t.Error("an amount does not")
	}
	var back payment
	if err := json.Unmarshal(a.Input, &back); err != nil || back.Amount != math.MaxInt64 ||
		strings.Contains(string(a.Input), "one") {
		t.Errorf("%s, %v", a.Input, err)
	}
	if _, err := f.Request(paymentKey, []int{1}); err == nil {
		t.Error("members were omitted from an array")
	}
	if _, err := f.Request(paymentKey, json.RawMessage(`{"a":1,"a":2}`)); err == nil {
		t.Error("a member that occurs twice was lost")
	}
	if r := requestFor(t, idempotency.Fingerprinter{}, payment{}); r.Input != nil || r.Older != nil {
		t.Errorf("%+v", r)
	}
}

// TestFingerprinter_Versions: two releases match the records of each other by Older.
func TestFingerprinter_Versions(t *testing.T) {
	t.Parallel()
	errForm := errors.New("a form that fails")
	type v1 struct {
		Account string `json:"account"`
		Amount  int64  `json:"amount"`
	}
	first := idempotency.Fingerprinter{Form: func(c any) (any, error) {
		p := c.(payment)
		if p.Currency != "EUR" { // before there were others
			return nil, nil
		}
		return v1{p.Account, p.Amount}, nil
	}}
	second := idempotency.Fingerprinter{Version: 2, Secret: []byte("s"), Older: []idempotency.Fingerprinter{first}}
	euro, dollar := payment{Account: "a", Amount: 1, Currency: "EUR"}, payment{Account: "a", Amount: 1, Currency: "USD"}

	record := requestFor(t, idempotency.Fingerprinter{}, v1{"a", 1}).Fingerprint // what the former release wrote
	r := requestFor(t, second, euro)
	if r.Fingerprint.Version != 2 || !r.Matches(record) || !r.Matches(r.Fingerprint) {
		t.Errorf("%+v does not match %+v", r, record)
	}
	if requestFor(t, second, dollar).Matches(record) {
		t.Error("a command that the former release could not be asked matches its record")
	}
	if wrong := record; r.Matches(idempotency.Fingerprint{Version: 2, Sum: wrong.Sum}) ||
		r.Matches(idempotency.Fingerprint{Version: 3, Sum: wrong.Sum}) {
		t.Error("a sum matches in another version")
	}
	for why, f := range map[string]idempotency.Fingerprinter{
		"one version twice":         {Older: []idempotency.Fingerprinter{{}}},
		"a negative one":            {Version: -1},
		"a negative older one":      {Version: 1, Older: []idempotency.Fingerprinter{{Version: -2}}},
		"no current form":           {Form: func(any) (any, error) { return nil, nil }},
		"a current form that fails": {Form: func(any) (any, error) { return nil, errForm }},
		"an older form that fails": {Version: 2, Older: []idempotency.Fingerprinter{
			{Form: func(any) (any, error) { return nil, errForm }},
		}},
		"an older form that is no JSON": {Version: 2, Older: []idempotency.Fingerprinter{
			{Form: func(any) (any, error) { return math.NaN(), nil }},
		}},
	} {
		if _, err := f.Request(paymentKey, euro); err == nil {
			t.Errorf("%s: no error", why)
		}
	}
	if _, err := idempotency.NewRequest(idempotency.Key{}, euro); !errors.Is(err, idempotency.ErrInvalidKey) {
		t.Errorf("an empty key: %v", err)
	}
}

// tree generates a JSON value, with numbers as decimals.
func tree(t *rapid.T, depth int) any {
	kinds := 4
	if depth > 0 {
		kinds = 6
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]any{nil, true, false}).Draw(t, "literal")
	case 1:
		return json.Number(fmt.Sprintf("%de%d", rapid.Int64().Draw(t, "digits"),
			rapid.IntRange(-3, 3).Draw(t, "exponent")))
	case 2:
		return json.Number(rapid.SampledFrom([]string{"9007199254740992", "9007199254740993", "0.1", "1", "10"}).Draw(t,
			"number"))
	case 3:
		return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x00", "\x001e0", "1", "\"", "\\"})).Filter(
			func(s string) bool { return !strings.ContainsRune(s, '\ufffd') }).Draw(t, "text")
	case 4:
		list := make([]any, rapid.IntRange(0, 3).Draw(t, "length"))
		for i := range list {
			list[i] = tree(t, depth-1)
		}
		return list
	}
	object := map[string]any{}
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		object[rapid.SampledFrom([]string{"", "a", "b", "\x00", "é", "😀", "ﬀ"}).Draw(t, "name")] = tree(t, depth-1)
	}
	return object
}

// spell writes a value with random white space, order of members, and spelling of numbers and strings.
func spell(t *rapid.T, v any) string {
	space := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "space")
	switch v := v.(type) {
	case json.Number:
		digits, exponent, _ := strings.Cut(string(v), "e")
		if exponent != "" && digits != "0" && rapid.Bool().Draw(t, "zero") {
			e := 0
			_, _ = fmt.Sscan(exponent, &e)
			return space + fmt.Sprintf("%s0E%d", digits, e-1)
		}
		return space + string(v)
	case string:
		var b strings.Builder
		for _, r := range v {
			switch {
			case r == '"' || r == '\\':
				b.WriteString("\\" + string(r))
			case r < 0x20 || r < 0xd800 && rapid.Bool().Draw(t, "escape"):
				fmt.Fprintf(&b, "\\u%04x", r)
			default:
				b.WriteRune(r)
			}
		}
		return space + `"` + b.String() + `"` + space
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = spell(t, v[i])
		}
		return "[" + strings.Join(parts, space+",") + space + "]"
	case map[string]any:
		var parts []string
		for name, value := range v {
			parts = append(parts, spell(t, name)+":"+spell(t, value))
		}
		if len(parts) > 1 {
			parts = rapid.Permutation(parts).Draw(t, "order")
		}
		return space + "{" + strings.Join(parts, ",") + space + "}"
	}
	plain, _ := json.Marshal(v)
	return space + string(plain)
}

// equal compares two values, numbers as fractions.
func equal(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		if !ok {
			return false
		}
		x, _ := new(big.Rat).SetString(string(a))
		y, _ := new(big.Rat).SetString(string(b))
		return x.Cmp(y) == 0
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name := range a {
			other, there := b[name]
			if !there || !equal(a[name], other) {
				return false
			}
		}
		return true
	}
	return a == b
}

// change changes one place of a value.
func change(t *rapid.T, v any) any {
	switch v := v.(type) {
	case []any:
		if len(v) > 0 {
			out := append([]any(nil), v...)
			i := rapid.IntRange(0, len(v)-1).Draw(t, "at")
			out[i] = change(t, v[i])
			return out
		}
	case map[string]any:
		for _, name := range []string{"", "a", "b", "\x00", "é"} {
			if value, there := v[name]; there {
				out := map[string]any{}
				for n := range v {
					out[n] = v[n]
				}
				out[name] = change(t, value)
				return out
			}
		}
	}
	return tree(t, 1)
}

// TestCanonical_EqualByMeaning: the canonical bytes of two spellings are equal exactly if their values are.
func TestCanonical_EqualByMeaning(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := tree(t, 3)
		first, err := idempotency.Canonical(json.RawMessage(spell(t, a)))
		if err != nil {
			t.Fatal(err)
		}
		again, err := idempotency.Canonical(json.RawMessage(spell(t, a)))
		if err != nil || string(first) != string(again) {
			t.Fatalf("%s and %s, %v", first, again, err)
		}
		typed, err := idempotency.Canonical(a)
		if err != nil || string(first) != string(typed) {
			t.Fatalf("%s and %s, %v", first, typed, err)
		}
		b := change(t, a)
		other, err := idempotency.Canonical(b)
		if err != nil || (string(first) == string(other)) != equal(a, b) {
			t.Fatalf("%s and %s, %v; they mean the same: %v", first, other, err, equal(a, b))
		}
	})
}

// FuzzFingerprint: any JSON has a fingerprint or an error; canonical bytes are a fixed point, and keep all strings.
func FuzzFingerprint(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,2.50,-0,1e400],"b":"\u0000x"}`, `"\ud83d\ude00"`, `[[[]]]`, `9007199254740993`,
		`{"a":1,"a":2}`, "\"\xff\"", `null`, `"\\ufffd"`,
	} {
		f.Add([]byte(s), "a")
	}
	f.Fuzz(func(t *testing.T, text []byte, omit string) {
		f := idempotency.Fingerprinter{Omit: []string{omit}, KeepInput: true}
		if r, err := f.Request(paymentKey, json.RawMessage(text)); err == nil {
			again, err := f.Request(paymentKey, json.RawMessage(r.Input))
			if err != nil || again.Fingerprint != r.Fingerprint {
				t.Fatalf("%q: its input %q is another command, %v", text, r.Input, err)
			}
		}
		got, err := idempotency.Canonical(json.RawMessage(text))
		if err != nil {
			return
		}
		var compact any
		if err := json.Unmarshal(got, &compact); err != nil {
			t.Fatalf("%q became %q, which is no JSON: %v", text, got, err)
		}
	})
}
