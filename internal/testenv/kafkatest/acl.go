package kafkatest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Deny denies everybody to write to a topic, as a mistake in the cluster's ACLs does. allow removes the denial; so does
// the end of the test. Without a real Kafka it skips the test.
func Deny(t testing.TB, brokers []string, topic string) (allow func()) {
	t.Helper()
	RequireReal(t)
	create := kmsg.NewPtrCreateACLsRequest()
	create.Creations = []kmsg.CreateACLsRequestCreation{{
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*", Host: "*",
		Operation: kmsg.ACLOperationWrite, PermissionType: kmsg.ACLPermissionTypeDeny,
	}, {
		// A topic with any ACL denies all that no ACL allows, so allow everything else.
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*", Host: "*",
		Operation: kmsg.ACLOperationAll, PermissionType: kmsg.ACLPermissionTypeAllow,
	}}
	createACLs(t, brokers, create)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := awaitWritable(ctx, newClient(t, brokers), topic, false); err != nil {
		t.Fatalf("kafkatest: deny %s: %v", topic, err)
	}
	var once sync.Once
	allow = func() { once.Do(func() { dropACLs(t, brokers, topic) }) }
	t.Cleanup(allow)
	return allow
}

// ACL is a permission of LimitedUser.
type ACL struct {
	Operation string // as in kafka-acls.sh, such as "DESCRIBE_CONFIGS"
	On        string // "topic" or "group"
	Name      string
}

// Allow gives permissions to LimitedUser, and waits until they have taken effect: the controller answers before the
// broker knows of them.
func (s *Secure) Allow(t testing.TB, acls ...ACL) {
	t.Helper()
	create := kmsg.NewPtrCreateACLsRequest()
	for _, acl := range acls {
		on, err := kmsg.ParseACLResourceType(acl.On)
		operation, err2 := kmsg.ParseACLOperation(acl.Operation)
		if err := errors.Join(err, err2); err != nil {
			t.Fatalf("kafkatest: %v", err)
		}
		create.Creations = append(create.Creations, kmsg.CreateACLsRequestCreation{
			ResourceType: on, ResourceName: acl.Name, ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral,
			Principal: "User:" + LimitedUser, Host: "*", Operation: operation,
			PermissionType: kmsg.ACLPermissionTypeAllow,
		})
	}
	createACLs(t, s.Brokers(), create)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	client := newClient(t, s.Brokers())
	for _, c := range create.Creations {
		if err := awaitACL(ctx, client, c); err != nil {
			t.Fatalf("kafkatest: an ACL on %s: %v", c.ResourceName, err)
		}
	}
}

// awaitACL waits until the broker has an ACL.
func awaitACL(ctx context.Context, client *kgo.Client, acl kmsg.CreateACLsRequestCreation) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourceName, req.ResourcePatternType = acl.ResourceType, &acl.ResourceName,
		acl.ResourcePatternType
	req.Principal, req.Operation, req.PermissionType = &acl.Principal, acl.Operation, acl.PermissionType
	for {
		res, err := req.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(res.ErrorCode)
		}
		if err != nil || len(res.Resources) > 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func createACLs(t testing.TB, brokers []string, create *kmsg.CreateACLsRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	res, err := create.RequestWith(ctx, newClient(t, brokers))
	if err != nil {
		t.Fatalf("kafkatest: create ACLs: %v", err)
	}
	for i, r := range res.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Fatalf("kafkatest: an ACL on %s: %v", create.Creations[i].ResourceName, err)
		}
	}
}

// awaitWritable waits until a change of ACLs has taken effect: the broker answers a moment before that.
func awaitWritable(ctx context.Context, client *kgo.Client, topic string, want bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	const write = 1 << kmsg.ACLOperationWrite
	for {
		res, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if len(res.Topics) == 1 {
			topic := &res.Topics[0]
			gone := errors.Is(kerr.ErrorForCode(topic.ErrorCode), kerr.UnknownTopicOrPartition)
			if want && gone || topic.ErrorCode == 0 && (topic.AuthorizedOperations&write != 0) == want {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func dropACLs(t testing.TB, brokers []string, topic string) {
	t.Helper()
	drop := kmsg.NewPtrDeleteACLsRequest()
	drop.Filters = []kmsg.DeleteACLsRequestFilter{{
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: &topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationAny,
		PermissionType: kmsg.ACLPermissionTypeAny,
	}}
	client := newClient(t, brokers)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	res, err := drop.RequestWith(ctx, client)
	if err != nil {
		t.Errorf("kafkatest: allow %s: %v", topic, err)
		return
	}
	for _, r := range res.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Errorf("kafkatest: allow %s: %v", topic, err)
		}
	}
	if err := awaitWritable(ctx, client, topic, true); err != nil {
		t.Errorf("kafkatest: allow %s: %v", topic, err)
	}
}
