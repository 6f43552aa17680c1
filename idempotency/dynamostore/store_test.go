package dynamostore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/dynamostore"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/internal/netcut"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/dynamotest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// retryForever makes a client retry until the test ends.
func retryForever(o *dynamodb.Options) {
	o.Retryer = retry.NewStandard(func(so *retry.StandardOptions) {
		so.MaxAttempts, so.RateLimiter = 10_000, ratelimit.None
		so.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) {
			return 5 * time.Millisecond,
				nil
		})
	})
}

func noRetry(o *dynamodb.Options) { o.Retryer = aws.NopRetryer{} }

func dynamoThrough(t *testing.T, cut *netcut.Proxy, change func(*dynamodb.Options)) *dynamodb.Client {
	t.Helper()
	return dynamoAt(t, "http://"+cut.Addr(), change)
}

// TestPeer_AWSSDKJava2667_OwnSuccessIsNotLost: the SDK loses the reply to a conditional write and retries it; the
// condition then fails on its own item.
func TestPeer_AWSSDKJava2667_OwnSuccessIsNotLost(t *testing.T) {
	t.Parallel()
	url := dynamotest.URL(t)
	direct := dynamoAt(t, url, nil)
	cut := netcut.New(t, strings.TrimPrefix(url, "http://"))
	name := table(t, direct)
	other, s := open(t, direct, name), open(t, dynamoThrough(t, cut, retryForever), name)
	win(t, s, request("warm", "")) // sets the clock

	heal := cut.DropReplies(t)
	r := request("k", "100 EUR")
	type reply struct {
		claimed store.ClaimResult
		err     error
	}
	replies := make(chan reply, 1)
	go func() {
		got, err := s.Claim(t.Context(), r, terms(time.Minute))
		replies <- reply{got, err}
	}()
	var first store.Record
	pgtest.Await(t, "the claim's arrival", func() (found bool, err error) {
		first, found, err = other.Get(t.Context(), r.Key)
		return found, err
	})
	heal()
	got := <-replies
	if got.err != nil || !got.claimed.Won || got.claimed.Lease.Fence != first.Fence {
		t.Fatalf("%+v, the first attempt's fence is %d", got, first.Fence)
	}
}

// TestWrites_RepliesLost: a call whose reply is lost returns an error of an unknown outcome, and succeeds when it is
// sent again.
func TestWrites_RepliesLost(t *testing.T) {
	t.Parallel()
	url := dynamotest.URL(t)
	cut := netcut.New(t, strings.TrimPrefix(url, "http://"))
	s := open(t, dynamoThrough(t, cut, noRetry), table(t, dynamoAt(t, url, nil)))
	for name, do := range map[string]func(l store.Lease) error{
		"extend": func(l store.Lease) error { return s.Extend(t.Context(), l, time.Minute) },
		"save": func(l store.Lease) error {
			return s.Save(t.Context(), l, store.Progress{Stage: idempotency.LocalCreated})
		},
		"finish": func(l store.Lease) error {
			return s.Finish(t.Context(), l, idempotency.Result{Code: 1}, idempotency.Retention{})
		},
		"release":      func(l store.Lease) error { return s.Release(t.Context(), l) },
		"mark unknown": func(l store.Lease) error { return s.MarkUnknown(t.Context(), l, "why", time.Minute) },
	} {
		l := win(t, s, request(name, ""))
		heal := cut.DropReplies(t)
		err := do(l)
		heal()
		if err == nil || errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("%s with its reply lost: %v", name, err)
		}
		if err := do(l); err != nil {
			t.Errorf("%s, sent again: %v", name, err)
		}
	}
}

// transport is a client's transport that a test observes and changes.
type transport struct {
	shift atomic.Int64 // of the Date of responses, a time.Duration
	save  atomic.Pointer[http.Request]
	// afterQuery is called once, after a query of the index.
	afterQuery atomic.Pointer[func()]
}

// RoundTrip keeps the first request that saves progress, to be sent once more.
func (r *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		if again := req.Clone(context.Background()); bytes.Contains(body, []byte(":progress")) {
			again.Body = io.NopCloser(bytes.NewReader(body))
			r.save.CompareAndSwap(nil, again)
		}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if req.Header.Get("X-Amz-Target") == "DynamoDB_20120810.Query" {
		if afterQuery := r.afterQuery.Swap(nil); afterQuery != nil {
			(*afterQuery)()
		}
	}
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		res.Header.Set("Date", date.Add(time.Duration(r.shift.Load())).UTC().Format(http.TimeFormat))
	}
	return res, nil
}

// dynamoOver returns a client over a transport.
func dynamoOver(t *testing.T, way *transport) *dynamodb.Client {
	t.Helper()
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return dynamoAt(t, dynamotest.URL(t), func(o *dynamodb.Options) { o.HTTPClient = &http.Client{Transport: way} })
}

// TestClock_IsTheServers: with a server ten hours ahead, leases and times are by its clock.
func TestClock_IsTheServers(t *testing.T) {
	t.Parallel()
	const ahead = 10 * time.Hour
	way := &transport{}
	way.shift.Store(int64(ahead))
	client := dynamoOver(t, way)
	name := table(t, client)
	s := open(t, client, name)
	l := win(t, s, request("k", ""))
	other := claim(t, open(t, client, name), request("k", ""), terms(time.Minute))
	if other.Won || other.Record.State != idempotency.InProgress || other.Record.LeaseLeft <= 0 ||
		other.Record.LeaseLeft > time.Minute {
		t.Fatalf("%+v", other)
	}
	if err := s.Finish(t.Context(), l, idempotency.Result{}, idempotency.Retention{}); err != nil {
		t.Fatal(err)
	}
	rec, _, err := s.Get(t.Context(), l.Key)
	if err != nil || time.Until(rec.Result.At) < ahead/2 {
		t.Fatalf("finished at %v: %v", rec.Result.At, err)
	}
}

// TestLease_NeverShorterThanAsked: a store that knows the time to a second sets a lease by the latest. The server's
// clock is this machine's.
func TestLease_NeverShorterThanAsked(t *testing.T) {
	t.Parallel()
	client := dynamoAt(t, dynamotest.URL(t), nil)
	name := table(t, client)
	for i := range 5 {
		asked := time.Now()
		l := win(t, open(t, client, name), request(fmt.Sprint(i), "")) // win asks for a minute
		found, err := client.GetItem(t.Context(), &dynamodb.GetItemInput{
			TableName: &name,
			Key: map[string]types.AttributeValue{
				"key":  &types.AttributeValueMemberS{Value: l.Key.Operation + "\n" + l.Key.Tenant + "\n" + l.Key.Value},
				"part": &types.AttributeValueMemberS{Value: "record"},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var ends int64
		if err := parse(found.Item["lease"], &ends); err != nil || time.UnixMicro(ends).Before(asked.Add(time.Minute)) {
			t.Fatalf("asked at %v for a minute, the lease ends at %v: %v", asked, time.UnixMicro(ends), err)
		}
	}
}

// TestSave_LateDuplicate: a duplicate of a save that arrives after the next save changes nothing.
func TestSave_LateDuplicate(t *testing.T) {
	t.Parallel()
	way := &transport{}
	client := dynamoOver(t, way)
	s := open(t, client, table(t, client))
	l := win(t, s, request("k", ""))
	for _, stage := range []idempotency.Stage{idempotency.LocalCreated, idempotency.ProviderRequestSent} {
		if err := s.Save(t.Context(), l, store.Progress{Stage: stage}); err != nil {
			t.Fatal(err)
		}
	}
	res, err := http.DefaultTransport.RoundTrip(way.save.Load())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if text, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(text), "ConditionalCheckFailed") {
		t.Errorf("%s %v", text, err)
	}
	if rec, _, err := s.Get(t.Context(), l.Key); err != nil || rec.Progress.Stage != idempotency.ProviderRequestSent {
		t.Fatal(rec.Progress, err)
	}
}

// TestTTL_OnlyFinished: the table's TTL is never set on an unfinished key, and on others after the end of the
// retention.
func TestTTL_OnlyFinished(t *testing.T) {
	t.Parallel()
	client := dynamoAt(t, dynamotest.URL(t), nil)
	name := table(t, client)
	s := open(t, client, name)
	unknown := win(t, s, request("unknown", ""))
	done, kept := win(t, s, request("done", "")), win(t, s, request("kept", ""))
	win(t, s, request("working", ""))
	begun := time.Now()
	for _, err := range []error{
		s.MarkUnknown(t.Context(), unknown, "", 0),
		s.Finish(t.Context(), done, idempotency.Result{Body: []byte("b")}, idempotency.Retention{
			Body:      10 * time.Hour,
			Tombstone: 20 * time.Hour,
		}),
		s.Finish(t.Context(), kept, idempotency.Result{Body: []byte("b")},
			idempotency.Retention{Body: -1, Tombstone: -1}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := client.Scan(t.Context(), &dynamodb.ScanInput{TableName: &name})
	if err != nil || len(all.Items) != 6 {
		t.Fatal(len(all.Items), err)
	}
	for _, i := range all.Items {
		key := i["key"].(*types.AttributeValueMemberS).Value
		part := i["part"].(*types.AttributeValueMemberS).Value
		want, ends := map[bool]time.Duration{true: 20 * time.Hour, false: 10 * time.Hour}[part == "record"], i["ttl"]
		if !strings.HasSuffix(key, "done") {
			if ends != nil {
				t.Errorf("%q %s has a TTL", key, part)
			}
			continue
		}
		var at int64
		if err := parse(ends, &at); err != nil || time.Unix(at, 0).Sub(begun) < want ||
			time.Unix(at, 0).Sub(begun) > want+2*time.Hour {
			t.Errorf("%q %s ends at %v: %v", key, part, time.Unix(at, 0), err)
		}
	}
}

// TestFinish_TooLarge: work whose answer does not fit into an item is done: a retry gets ErrExpired and does not run it
// again.
func TestFinish_TooLarge(t *testing.T) {
	t.Parallel()
	client := dynamoAt(t, dynamotest.URL(t), nil)
	s := open(t, client, table(t, client))
	g, err := guard.New(s, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := request("k", "")
	res, err := g.Do(t.Context(), r, func(context.Context) (idempotency.Result, error) {
		return idempotency.Result{Code: 201, Body: make([]byte, 400<<10), Resource: "p1"}, nil
	})
	if err != nil || len(res.Body) != 400<<10 {
		t.Fatal(err)
	}
	_, err = g.Do(t.Context(), r, func(context.Context) (idempotency.Result, error) {
		t.Error("it ran again")
		return idempotency.Result{}, nil
	})
	var expired *idempotency.ExpiredError
	if !errors.As(err, &expired) || expired.Code != 201 || expired.Resource != "p1" {
		t.Fatal(err)
	}
}

// TestRecover_QueriesBucketsInParallel: a slow query does not block the others.
func TestRecover_QueriesBucketsInParallel(t *testing.T) {
	t.Parallel()
	client := dynamoAt(t, dynamotest.URL(t), nil)
	name, second := table(t, client), make(chan struct{})
	var queries atomic.Int32
	slow := dynamoAt(t, dynamotest.URL(t), func(o *dynamodb.Options) {
		inner := o.HTTPClient
		o.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("X-Amz-Target") == "DynamoDB_20120810.Query" {
				switch queries.Add(1) {
				case 1: // waits for the second query
					select {
					case <-second:
					case <-r.Context().Done():
						return nil, r.Context().Err()
					}
				case 2:
					close(second)
				}
			}
			return inner.Do(r)
		})
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := open(t, client, name).MarkUnknown(ctx, win(t, open(t, client, name), request("k", "")), "",
		0); err != nil {
		t.Fatal(err)
	}
	s := open(t, slow, name)
	pgtest.Await(t, "the key", func() (bool, error) { // this client's clock may be behind the other's
		got, err := s.Recover(ctx, store.RecoverOptions{Limit: 10, Lease: time.Minute, Token: "r"})
		return len(got) == 1, err
	})
	if got, err := s.Stats(ctx); err != nil || got.Unknown != 1 || got.Stuck != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
}

// doer is the SDK's interface of an HTTP client.
type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

func TestCheck(t *testing.T) {
	t.Parallel()
	client := dynamoAt(t, dynamotest.URL(t), nil)
	name := table(t, client)
	if err := dynamostore.CreateTable(t.Context(), client, name); err != nil {
		t.Fatalf("create it again: %v", err)
	}
	if _, err := open(t, client, name).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	noIndex := dynamostore.Table(name + "-no-index")
	noIndex.GlobalSecondaryIndexes, noIndex.AttributeDefinitions = nil, noIndex.AttributeDefinitions[:2]
	if _, err := client.CreateTable(t.Context(), noIndex); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, client, name+"-no-index").Check(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "index") {
		t.Fatal(err)
	}
	if _, err := open(t, client, "nowhere").Check(t.Context()); err == nil {
		t.Fatal("no error for a missing table")
	}
}

// TestRecover_KeysChangeAfterQuery: a recoverer gets no key that was extended, postponed or finished after its query.
func TestRecover_KeysChangeAfterQuery(t *testing.T) {
	t.Parallel()
	way := &transport{}
	client := dynamoOver(t, way)
	name := table(t, client)
	s, other := open(t, client, name), open(t, dynamoAt(t, dynamotest.URL(t), nil), name)
	leases := map[string]store.Lease{}
	for _, key := range sameBucket("extended", "postponed", "finished") {
		r := request(key, "")
		leases[strings.TrimRight(key, "+")] = claim(t, s, r, terms(time.Millisecond)).Lease
		pgtest.Await(t, "the end of the lease", func() (bool, error) {
			rec, _, err := s.Get(t.Context(), r.Key)
			return rec.LeaseLeft <= 0, err
		})
	}
	if err := s.MarkUnknown(t.Context(), leases["postponed"], "", 0); err != nil {
		t.Fatal(err)
	}
	meanwhile := func() {
		for _, err := range []error{
			other.Extend(t.Context(), leases["extended"], time.Minute),
			other.Postpone(t.Context(), leases["postponed"], "", time.Minute, false),
			other.Finish(t.Context(), leases["finished"], idempotency.Result{}, idempotency.Retention{}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	way.afterQuery.Store(&meanwhile)
	got, err := s.Recover(t.Context(), store.RecoverOptions{Limit: 10, Lease: time.Minute, Token: "r"})
	if err != nil || len(got) != 0 {
		t.Fatalf("%+v %v", got, err)
	}
}

// sameBucket appends to names so that their keys are in bucket 0 of the index, which is read first.
func sameBucket(names ...string) []string {
	for i := range names {
		for crc32.ChecksumIEEE([]byte("payment.create\nt\n"+names[i]))%16 != 0 {
			names[i] += "+"
		}
	}
	return names
}
