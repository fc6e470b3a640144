#!/bin/sh
# Submit a job of tailrace to a Spark cluster. What follows the job's name are the arguments of the verb.
#
#   MASTER=spark://host:7077 deploy/spark/submit.sh features features.toml --topics tailrace.shop.transactions \
#       --checkpoint s3a://bucket/checkpoints/fraud
#   MASTER=k8s://https://host:6443 IMAGE=registry/tailrace-spark:0.1.0 deploy/spark/submit.sh warehouse \
#       --topics '/tailrace\..*/' --checkpoint s3a://bucket/checkpoints/warehouse
#
#   MASTER          the cluster: spark://... or k8s://https://...
#   IMAGE           Kubernetes: the image of driver and executors
#   PYSPARK_PYTHON  standalone: the Python with tailrace, at the same path on every node; default python3
#   JARS            connector jars with commas; without it Spark fetches the pinned ones from Maven Central
#   SPARK_SUBMIT    the program; default spark-submit
#   SUBMIT_FLAGS    more flags for spark-submit, such as --conf spark.cores.max=16
#
# Checkpoints and tables must be where all nodes reach them. Settings come from TAILRACE_CONFIG or TAILRACE_... variables,
# on Kubernetes from the secret that kubernetes.conf names.
set -eu

job=${1:?"name a job: features or warehouse"}
shift
: "${MASTER:?"set MASTER to spark://host:7077 or k8s://https://host:6443"}"
here=$(cd "$(dirname "$0")" && pwd)
[ -f "$here/${job}_job.py" ] || { echo "submit.sh: there is no job $job" >&2; exit 64; }

# The only releases that stream end to end with Spark 4.0 (src/tailrace/spark/session.py).
packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0
if [ "${TAILRACE_WAREHOUSE__FORMAT:-}" = delta ]; then
    packages=$packages,io.delta:delta-spark_2.13:4.0.1
fi

case $MASTER in
k8s://*)
    properties=$here/kubernetes.conf
    program=local:///opt/tailrace/deploy/spark/${job}_job.py
    set -- "$program" "$@"
    set -- --conf "spark.kubernetes.container.image=${IMAGE:?"set IMAGE to an image with Spark and tailrace"}" "$@"
    ;;
*)
    properties=$here/standalone.conf
    export PYSPARK_PYTHON="${PYSPARK_PYTHON:-python3}"
    set -- "$here/${job}_job.py" "$@"
    ;;
esac
if [ -n "${JARS:-}" ]; then
    set -- --jars "$JARS" "$@"
else
    set -- --packages "$packages" "$@"
fi
# SUBMIT_FLAGS is several words on purpose.
# shellcheck disable=SC2086
exec "${SPARK_SUBMIT:-spark-submit}" --master "$MASTER" --name "tailrace-$job" --properties-file "$properties" \
    ${SUBMIT_FLAGS:-} "$@"
