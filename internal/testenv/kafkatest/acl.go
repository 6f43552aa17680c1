package kafkatest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Deny takes the right to write to a topic away from everybody, as a slip in the cluster's ACLs does, and returns what
// gives it back; the end of the test gives it back too. It skips the test where there is no real Kafka.
func Deny(t testing.TB, brokers []string, topic string) (allow func()) {
	t.Helper()
	RequireReal(t)
	create := kmsg.NewPtrCreateACLsRequest()
	create.Creations = []kmsg.CreateACLsRequestCreation{{
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*", Host: "*",
		Operation: kmsg.ACLOperationWrite, PermissionType: kmsg.ACLPermissionTypeDeny,
	}, {
		// Any ACL on a topic shuts out who has none: what is not denied is allowed again.
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*", Host: "*",
		Operation: kmsg.ACLOperationAll, PermissionType: kmsg.ACLPermissionTypeAllow,
	}}
	createACLs(t, brokers, create)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	await(t, ctx, newClient(t, brokers), topic)
	var once sync.Once
	allow = func() { once.Do(func() { dropACLs(t, brokers, topic) }) }
	t.Cleanup(allow)
	return allow
}

// ACL is a right of LimitedUser.
type ACL struct {
	Operation string // as kafka-acls.sh knows it: "DESCRIBE_CONFIGS"
	On        string // "topic" or "group"
	Name      string
}

// Allow gives rights to LimitedUser. A broker goes by them a moment later.
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

// await waits until the broker goes by the denial: an ACL is accepted before it is in force.
func await(t testing.TB, ctx context.Context, client *kgo.Client, topic string) {
	t.Helper()
	ask := kmsg.NewPtrMetadataRequest()
	ask.IncludeTopicAuthorizedOperations = true
	ask.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	const write = 1 << kmsg.ACLOperationWrite
	for {
		res, err := ask.RequestWith(ctx, client)
		if err != nil {
			t.Fatalf("kafkatest: what is allowed on %s: %v", topic, err)
		}
		if len(res.Topics) == 1 && res.Topics[0].ErrorCode == 0 && res.Topics[0].AuthorizedOperations&write == 0 {
			return
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
}
