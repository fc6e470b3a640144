// Watches, resumes and filters with the Node.js driver; prints one JSON line with what it saw.
// Usage: node watch.cjs <path of the package mongodb> <uri> <database>
const [, , packagePath, uri, databaseName] = process.argv;
const { MongoClient } = require(packagePath);

async function main() {
  const client = new MongoClient(uri, { serverSelectionTimeoutMS: 10000 });
  await client.connect();
  const topology = client.topology.description.type;
  const orders = client.db(databaseName).collection("orders");

  const watched = [];
  const stream = orders.watch([], { fullDocument: "updateLookup" });
  const first = stream.next();
  await new Promise((resolve) => setTimeout(resolve, 500)); // the stream opens with its first read
  for (let number = 0; number < 5; number++) await orders.insertOne({ _id: number });
  await orders.updateOne({ _id: 1 }, { $set: { paid: true } });
  watched.push(await first);
  while (watched.length < 6) watched.push(await stream.next());
  await stream.close();

  const resumed = orders.watch([], { resumeAfter: watched[2]._id });
  const again = [await resumed.next(), await resumed.next()];
  await resumed.close();

  const filtered = orders.watch([{ $match: { operationType: "update" } }, { $project: { documentKey: 1 } }], {
    startAtOperationTime: watched[0].clusterTime,
  });
  const update = await filtered.next();
  await filtered.close();
  await client.close();

  console.log(
    JSON.stringify({
      topology,
      watched: watched.map((event) => [event.operationType, event.documentKey._id]),
      paid: watched[5].fullDocument.paid,
      again: again.map((event) => event.documentKey._id),
      update: Object.keys(update).sort(),
    }),
  );
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
