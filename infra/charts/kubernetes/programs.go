//go:build tools

// Package programs names what is built here, so that go.mod and go.sum hold what it needs:
// an API server of Kubernetes and its store, for a test of the chart.
package programs

import (
	_ "go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
)
