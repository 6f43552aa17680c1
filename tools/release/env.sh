# To be sourced, with $repository and $work: go takes our modules from the tags of this repository, as if it were the
# one on GitHub, and all others from the module proxy. Nothing of the caller's environment decides what is built.
path=github.com/effectonce/effectonce
unset GOOS GOARCH GOAMD64 GOARM64 GOEXPERIMENT GOBIN
GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPROXY GOWORK=off GOENV=off GOFLAGS=-modcacherw GOPRIVATE=$path GOPATH=$work/go GOMODCACHE=$work/go/mod
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$repository.insteadOf" GIT_CONFIG_VALUE_0="https://$path"
