# A sample: Postgres in RDS, Kafka in MSK, IAM's logins to both, and the smallest policy for relay. Nobody has applied
# it yet: docs/platforms/postgres.md says what was checked.
terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }
}

variable "name" {
  description = "Prefix of all names."
  type        = string
  default     = "effectonce"
}

variable "vpc_id" {
  description = "The VPC in which relay runs."
  type        = string
}

variable "subnet_ids" {
  description = "Three private subnets, in a zone each."
  type        = list(string)
}

variable "relay_security_group_id" {
  description = "The security group of relay's pods, tasks or instances."
  type        = string
}

variable "relay_role_name" {
  description = "The IAM role of relay's pods, tasks or instances."
  type        = string
}

variable "topics" {
  description = "The topics that relay publishes to. This module does not create them."
  type        = list(string)
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  region    = data.aws_region.current.region
  aws       = "arn:${data.aws_partition.current.partition}"
  users_arn = "${local.aws}:rds-db:${local.region}:${data.aws_caller_identity.current.account_id}:dbuser"
  # cluster/NAME/UUID of the cluster's ARN is topic/NAME/UUID/TOPIC of a topic's.
  topic_arn = replace(aws_msk_cluster.kafka.arn, ":cluster/", ":topic/")
}

resource "aws_security_group" "servers" {
  name_prefix = "${var.name}-"
  description = "Postgres and Kafka of effectonce"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "relay" {
  for_each                     = { postgres = 5432, kafka = 9098 }
  description                  = "relay to ${each.key}"
  security_group_id            = aws_security_group.servers.id
  referenced_security_group_id = var.relay_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_db_subnet_group" "postgres" {
  name_prefix = "${var.name}-"
  subnet_ids  = var.subnet_ids
}

resource "aws_db_parameter_group" "postgres" {
  name_prefix = "${var.name}-"
  family      = "postgres17"

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }

  # Both are for --feed=wal only.
  parameter {
    name         = "rds.logical_replication"
    value        = "1"
    apply_method = "pending-reboot"
  }
  parameter {
    name         = "rds.iam_auth_for_replication"
    value        = "1"
    apply_method = "pending-reboot"
  }
}

resource "aws_db_instance" "postgres" {
  identifier_prefix                   = "${var.name}-"
  engine                              = "postgres"
  engine_version                      = "17"
  instance_class                      = "db.m7g.large"
  allocated_storage                   = 100
  storage_type                        = "gp3"
  storage_encrypted                   = true
  multi_az                            = true
  db_name                             = "app"
  username                            = "effectonce"
  manage_master_user_password         = true
  iam_database_authentication_enabled = true
  db_subnet_group_name                = aws_db_subnet_group.postgres.name
  parameter_group_name                = aws_db_parameter_group.postgres.name
  vpc_security_group_ids              = [aws_security_group.servers.id]
  backup_retention_period             = 7
  deletion_protection                 = true
  final_snapshot_identifier           = "${var.name}-last"
}

resource "aws_msk_configuration" "kafka" {
  name              = var.name
  server_properties = <<-EOT
    auto.create.topics.enable=false
    default.replication.factor=3
    min.insync.replicas=2
    unclean.leader.election.enable=false
  EOT
}

resource "aws_msk_cluster" "kafka" {
  cluster_name           = var.name
  kafka_version          = "3.9.x"
  number_of_broker_nodes = length(var.subnet_ids)

  configuration_info {
    arn      = aws_msk_configuration.kafka.arn
    revision = aws_msk_configuration.kafka.latest_revision
  }

  broker_node_group_info {
    instance_type   = "kafka.m7g.large"
    client_subnets  = var.subnet_ids
    security_groups = [aws_security_group.servers.id]
    storage_info {
      ebs_storage_info {
        volume_size = 100
      }
    }
  }

  client_authentication {
    sasl {
      iam = true
    }
  }

  encryption_info {
    encryption_in_transit {
      client_broker = "TLS"
    }
  }
}

# docs/platforms/kafka.md and postgres.md name these rights.
data "aws_iam_policy_document" "relay" {
  statement {
    actions   = ["rds-db:connect"]
    resources = ["${local.users_arn}:${aws_db_instance.postgres.resource_id}/relay"]
  }
  statement {
    actions   = ["kafka-cluster:Connect"]
    resources = [aws_msk_cluster.kafka.arn]
  }
  statement {
    actions = [
      "kafka-cluster:WriteData", "kafka-cluster:DescribeTopic", "kafka-cluster:ReadData",
      "kafka-cluster:DescribeTopicDynamicConfiguration",
    ]
    resources = [for topic in var.topics : "${local.topic_arn}/${topic}"]
  }
}

resource "aws_iam_role_policy" "relay" {
  name_prefix = "${var.name}-relay-"
  role        = var.relay_role_name
  policy      = data.aws_iam_policy_document.relay.json
}

locals {
  db    = aws_db_instance.postgres
  tls   = "sslmode=verify-full&sslrootcert=/etc/effectonce/global-bundle.pem"
  token = "aws rds generate-db-auth-token --hostname ${local.db.address} --port ${local.db.port}"
}

output "environment" {
  description = "relay's settings."
  value = {
    AWS_REGION                      = local.region
    RELAY_DATABASE_URL              = "postgres://relay@${local.db.endpoint}/${local.db.db_name}?${local.tls}"
    RELAY_DATABASE_PASSWORD_COMMAND = "${local.token} --username relay"
    RELAY_KAFKA_BROKERS             = aws_msk_cluster.kafka.bootstrap_brokers_sasl_iam
    RELAY_KAFKA_TLS                 = "true"
    RELAY_KAFKA_SASL                = "aws-msk-iam"
  }
}
